"""Draws of the native kernel: distribution, independence of all but seed, place and child, and what filters keep."""

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.native.choose_case import ROWS, Floats, NativeChoice, native_choices, record
from tests.native.probe import Probe
from tests.sampling.chi_square import fits
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from pelton.sampling.choose import choose

DRAWS = 20_000


@pytest.fixture(scope="module")
def native(native_library: ctypes.CDLL, probes: list[Probe]) -> NativeChoice:
    """The widest instruction set of this CPU; test_choose.py shows that the others give the same bits."""
    return native_choices(native_library, probes)[-1]


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    exact = logits.astype(np.float64)
    weights: npt.NDArray[np.float64] = np.exp(exact - exact.max())
    return weights / weights.sum()


def counted(tokens: npt.NDArray[np.int32], vocab: int) -> npt.NDArray[np.int64]:
    return np.bincount(tokens, minlength=vocab)


LOGITS = np.array([0.3, -1.2, 2.0, 1.1, -0.4, 0.9, -2.0, 1.9, 0.0, -1.5, -np.inf], np.float32)


# ---------------------------------------------------------------------------------------------------
# distribution


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
def test_draws_follow_the_softmax(native: NativeChoice, temperature: float) -> None:
    tokens = native.draws(LOGITS, record(temperature=temperature, seed=11), DRAWS)
    assert fits(counted(tokens, len(LOGITS)), softmax(LOGITS / temperature))


def test_first_tokens_of_many_seeds_follow_the_softmax(native: NativeChoice) -> None:
    tokens = np.array([native.choose(LOGITS, record(seed=seed)).token for seed in range(DRAWS)], np.int32)
    assert fits(counted(tokens, len(LOGITS)), softmax(LOGITS))


def test_filtered_draws_are_renormalised(native: NativeChoice) -> None:
    kept = LOGITS.copy()
    kept[np.argsort(-LOGITS)[4:]] = -np.inf
    assert fits(counted(native.draws(LOGITS, record(top_k=4), DRAWS), len(LOGITS)), softmax(kept))
    mass_before_fourth = softmax(LOGITS)[np.argsort(-LOGITS)[:3]].sum()
    wish = record(top_p=mass_before_fourth + 0.01)
    assert fits(counted(native.draws(LOGITS, wish, DRAWS), len(LOGITS)), softmax(kept))


@pytest.mark.parametrize("vocab", [63, 4097])
def test_a_uniform_row_is_drawn_evenly(native: NativeChoice, vocab: int) -> None:
    tokens, ids = native.draws(np.zeros(vocab, np.float32), record(seed=5), DRAWS), np.arange(vocab, dtype=np.int32)
    for divisor, modulus in ((1, 61), (4, 16), (vocab // 60, 60)):
        cells = ids // divisor % modulus
        assert fits(counted(cells[tokens], modulus), counted(cells, modulus).astype(np.float64))


def pairs(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32], vocab: int) -> npt.NDArray[np.int64]:
    return np.bincount(first * vocab + second, minlength=vocab * vocab).reshape(vocab, vocab)


SMALL = np.array([0.5, -0.5, 1.0, 0.0, -0.3, 0.2], np.float32)


def test_neighbouring_places_are_independent(native: NativeChoice) -> None:
    tokens = native.draws(SMALL, record(seed=3), 2 * DRAWS)
    p = softmax(SMALL)
    assert fits(pairs(tokens[::2], tokens[1::2], len(SMALL)), np.outer(p, p))


@pytest.mark.parametrize("other", [{"seed": 4}, {"seed": 3 + 2**32}, {"child": 1}, {"place": 10**6}], ids=str)
def test_neighbouring_streams_are_independent(native: NativeChoice, other: dict[str, int]) -> None:
    mine = native.draws(SMALL, record(seed=3), DRAWS)
    theirs = native.draws(SMALL, record(**{"seed": 3, **other}), DRAWS)
    p = softmax(SMALL)
    assert fits(pairs(mine, theirs, len(SMALL)), np.outer(p, p))


# ---------------------------------------------------------------------------------------------------
# nothing else matters


def test_a_row_does_not_depend_on_what_was_drawn_before(native: NativeChoice) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for number in range(60):
        logits = ROWS[list(ROWS)[number % 5]](rng, int(rng.integers(1, 6000)))
        wish = record(temperature=1.1, top_p=rng.choice([1.0, 0.8]), seed=int(rng.integers(0, 2**63)), place=number)
        cases.append((logits, wish))
    forward = [native.choose(*case).bits() for case in cases]
    backward = [native.choose(*case).bits() for case in reversed(cases)]
    assert forward == backward[::-1]
    # Logits at another address, and not at a 64-byte border.
    moved = [(np.concatenate([np.zeros(3, np.float32), logits])[3:], wish) for logits, wish in cases]
    assert [native.choose(*case).bits() for case in moved] == forward


def test_a_token_that_cannot_be_drawn_does_not_change_the_draw(native: NativeChoice) -> None:
    logits = ROWS["normal"](np.random.default_rng(8), 500)
    longer = np.concatenate([logits, np.full(700, -np.inf, np.float32)])
    wish = record(temperature=2.0)
    assert native.draws(logits, wish, 300).tolist() == native.draws(longer, wish, 300).tolist()


# ---------------------------------------------------------------------------------------------------
# kept sets, seen by drawing until every kept token has come up


def kept_by_transformers(logits: Floats, wish: np.void) -> set[int]:
    """min_p, top_k, top_p of transformers, in this project's order, in fp64 on the logits scaled in fp32."""
    scores = torch.from_numpy((logits / wish["temperature"]).astype(np.float64))[None]
    if wish["min_p"] > 0:
        scores = MinPLogitsWarper(float(wish["min_p"]))(None, scores)
    if wish["top_k"] > 0:
        scores = TopKLogitsWarper(int(wish["top_k"]))(None, scores)
    if wish["top_p"] < 1:
        scores = TopPLogitsWarper(float(wish["top_p"]))(None, scores)
    return set(torch.isfinite(scores[0]).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("seed", range(60))
def test_kept_sets_are_those_of_transformers(native: NativeChoice, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(2, 90))
    logits = rng.uniform(-1, 1, vocab).astype(np.float32)
    which = rng.integers(1, 8)  # of the three filters
    wish = record(
        temperature=rng.uniform(0.4, 2),
        top_p=rng.uniform(0.05, 0.99) if which & 1 else 1,
        top_k=rng.integers(1, vocab + 5) if which & 2 else 0,
        min_p=rng.uniform(0.05, 0.9) if which & 4 else 0,
        seed=seed,
    )
    drawn = set(native.draws(logits, wish, DRAWS).tolist())
    assert drawn == kept_by_transformers(logits, wish)


def test_ties_at_the_border(native: NativeChoice) -> None:
    logits = np.array([1, 0, 2, 1, 1, 0, 1], np.float32)
    assert set(native.draws(logits, record(top_k=2), 2000).tolist()) == {0, 2, 3, 4, 6}  # equals stay
    p = softmax(logits)
    for count in range(1, 5):  # of the equals the lower ids first
        wish = record(top_p=p[2] + (count - 0.5) * p[0])
        expected = {2, *[0, 3, 4, 6][:count]}
        assert set(native.draws(logits, wish, 5000).tolist()) == expected
        assert {choose(logits, record(top_p=wish["top_p"], place=place))[0] for place in range(300)} == expected
    assert set(native.draws(logits, record(top_p=1e-9), 500).tolist()) == {2}
    assert set(native.draws(logits, record(min_p=1.0), 500).tolist()) == {2}
    assert set(native.draws(np.zeros(64, np.float32), record(top_p=0.5), 5000).tolist()) == set(range(32))


def test_top_k_spread_over_the_vocabulary(native: NativeChoice) -> None:
    logits = np.full(6400, -9, np.float32)
    best = np.arange(100) * 64 + 5
    logits[best] = np.linspace(0.5, 0, 100)
    for k in (1, 2, 7, 50, 99, 100):
        assert set(native.draws(logits, record(top_k=k, temperature=3.0), DRAWS).tolist()) == set(best[:k].tolist())


@pytest.mark.parametrize("min_p", [0.9, 0.51, 0.3, 0.1, 0.07])
def test_min_p_is_exact_at_its_border(native: NativeChoice, min_p: float) -> None:
    wish = record(min_p=min_p)
    for largest in (8.0, -3.3, 0.7, 100.25):
        logits = np.full(5, largest, np.float32)
        border = float(logits[0]) + float(np.log(np.float64(wish["min_p"])))
        above = np.float32(border)
        if float(above) < border:
            above = np.nextafter(above, np.float32(np.inf))
        logits[1:] = above, np.nextafter(above, np.float32(-np.inf)), above, -200
        assert set(native.draws(logits, wish, 2000).tolist()) == {0, 1, 3}


def test_equal_scores_go_to_the_lower_id(native: NativeChoice) -> None:
    # So large that the noise is rounded away; the two differ, but not once they are scaled.
    logits = np.zeros(200, np.float32)
    larger = np.float32(1.6e20)
    while np.nextafter(larger, np.float32(0)) / np.float32(3) != larger / np.float32(3):
        larger = np.nextafter(larger, np.float32(0))
    logits[[5, 100]] = np.nextafter(larger, np.float32(0)), larger
    assert set(native.draws(logits, record(temperature=3.0), 50).tolist()) == {5}
    assert set(native.draws(logits, record(temperature=0.0), 5).tolist()) == {100}
