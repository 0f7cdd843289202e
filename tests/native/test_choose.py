"""The native choice of a token: bits on every instruction set, the numpy reference, faults and log-probabilities."""

import ctypes
from itertools import product

import numpy as np
import pytest
from tests.native.choose_case import CHUNK, INF, ROWS, Chosen, Floats, NativeChoice, native_choices, record
from tests.native.probe import Probe

from pelton.sampling.choose import choose, scores
from pelton.sampling.philox import gumbel

VOCABS = (1, 15, 16, 17, 63, 64, 65, 1000, 4095, 4096, 4097, 49152)
WISHES = tuple(
    dict(zip(("temperature", "top_p", "top_k", "min_p"), values, strict=True))
    for values in (
        (0.0, 1.0, 0, 0.0),
        (0.0, 0.5, 3, 0.2),
        (1.0, 1.0, 0, 0.0),
        (0.7, 1.0, 0, 0.0),
        (5.0, 1.0, 0, 0.0),
        (1.0, 0.9, 0, 0.0),
        (1.3, 0.999, 0, 0.0),
        (0.3, 0.01, 0, 0.0),
        (1.0, 1e-30, 0, 0.0),
        (1.0, 1.0, 40, 0.0),
        (1.0, 1.0, 1, 0.0),
        (2.0, 1.0, 800, 0.0),
        (1.0, 1.0, 0, 0.1),
        (3.0, 1.0, 0, 1e-4),
        (1.0, 1.0, 0, 1.0),
        (0.7, 0.95, 50, 0.05),
        (4.0, 0.5, 2000, 1e-3),
    )
)


@pytest.fixture(scope="module")
def isas(native_library: ctypes.CDLL, probes: list[Probe]) -> list[NativeChoice]:
    return native_choices(native_library, probes)


@pytest.fixture(scope="module")
def native(isas: list[NativeChoice]) -> NativeChoice:
    """The widest instruction set of this CPU."""
    return isas[-1]


def lse(logits: Floats) -> float:
    exact = logits.astype(np.float64)
    return float(exact.max() + np.log(np.exp(exact - exact.max()).sum()))


# ---------------------------------------------------------------------------------------------------
# the same bits everywhere


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_every_instruction_set_gives_the_same_bits(isas: list[NativeChoice], vocab: int, kind: str) -> None:
    rng = np.random.default_rng(vocab)
    logits = ROWS[kind](rng, vocab)
    for number, wish in enumerate(WISHES):
        wanted = record(**wish, seed=rng.integers(0, 2**63), place=number, logprobs=number % 8 - 1)
        first, *others = (isa.choose(logits, wanted).bits() for isa in isas)
        assert all(other == first for other in others), wish


@pytest.mark.parametrize("vocab", VOCABS)
def test_every_instruction_set_gives_the_same_statistics(isas: list[NativeChoice], vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for make in ROWS.values():
        logits = make(rng, vocab)
        for first in range(0, vocab, CHUNK):
            count = min(CHUNK, vocab - first)
            assert len({isa.stats(logits, first, count).tobytes() for isa in isas}) == 1


def test_a_repeated_call_gives_the_same_bits(native: NativeChoice) -> None:
    logits = ROWS["normal"](np.random.default_rng(1), 5000)
    wish = record(temperature=0.9, top_p=0.95, logprobs=5, place=3)
    assert len({native.choose(logits, wish).bits() for _ in range(5)}) == 1


# ---------------------------------------------------------------------------------------------------
# statistics


@pytest.mark.parametrize("kind", ["normal", "peaked", "tied", "equal", "climbing", "spread"])
@pytest.mark.parametrize("count", [1, 7, 16, 33, 4095, 4096])
def test_statistics_are_those_of_the_chunk(native: NativeChoice, kind: str, count: int) -> None:
    logits = ROWS[kind](np.random.default_rng(count), 5000)
    first = 904
    chunk = logits[first : first + count]
    found = native.stats(logits, first, count)
    assert found["max"] == chunk.max()
    assert found["argmax"] == first + int(np.argmax(chunk))
    assert found["sum"] == pytest.approx(np.exp(chunk.astype(np.float64) - chunk.max()).sum(), rel=2e-6)
    assert not found["bad"]


def test_the_order_of_the_sum_is_pinned(isas: list[NativeChoice]) -> None:
    # Made once by adding the lanes in numpy as choose.inl says; other bits are another version of the numerics.
    logits = ((np.arange(8192) * 7919) % 4001).astype(np.float32) / np.float32(256) - np.float32(9)
    goldens = {
        (0, 4096): "0x1.05ec5c0000000p+8",
        (4096, 4096): "0x1.06b18e0000000p+8",
        (100, 333): "0x1.48d3c40000000p+4",
        (5, 15): "0x1.caad340000000p+1",
    }
    for isa, ((first, count), golden) in product(isas, goldens.items()):
        assert float(isa.stats(logits, first, count)["sum"]).hex() == golden


# ---------------------------------------------------------------------------------------------------
# the reference


@pytest.mark.parametrize("kind", ROWS)
def test_tokens_are_those_of_the_reference(native: NativeChoice, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    close, cases = 0, 0
    for vocab, wish in product((1, 15, 17, 65, 1000, 4097), WISHES):
        logits = ROWS[kind](rng, vocab)
        for place in range(6):
            wanted = record(**wish, seed=int(rng.integers(0, 2**63)) * 2 + 1, place=place, child=place % 2)
            token = native.choose(logits, wanted).token
            cases += 1
            expected = scores(logits, wanted)
            if token != int(np.argmax(expected)):
                assert expected.max() - expected[token] < 1e-9, (vocab, wish, place)
                close += 1
    assert close <= cases // 500


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_a_large_vocabulary_agrees_with_the_reference(native: NativeChoice, wish: dict[str, float]) -> None:
    rng = np.random.default_rng(9)
    for kind in ("normal", "peaked", "tied"):
        logits = ROWS[kind](rng, 49152)
        wanted = record(**wish, seed=int(rng.integers(0, 2**63)), place=11, logprobs=4)
        expected = choose(logits, wanted)
        found = native.choose(logits, wanted)
        assert (found.token, found.rank, found.top_ids.tolist()) == (expected[0], expected[2], expected[3])
        assert found.logprob == pytest.approx(expected[1], abs=4e-6)
        assert found.top_logprobs == pytest.approx(np.array(expected[4]), abs=4e-6)


def test_every_part_of_the_counter_and_key_changes_the_noise(native: NativeChoice) -> None:
    logits = np.zeros(4096, np.float32)
    wishes = [{}, {"seed": 2}, {"seed": 1 + 2**40}, {"place": 1}, {"place": 2**31}, {"child": 1}]
    tokens = [native.choose(logits, record(**wish)).token for wish in wishes]
    assert tokens == [choose(logits, record(**wish))[0] for wish in wishes]
    assert len(set(tokens)) == len(tokens)


def test_the_noise_is_exact_for_its_rarest_values(isas: list[NativeChoice]) -> None:
    # Two tokens within rounding of a draw: the one with the largest noise of the vocabulary against an ordinary one.
    vocab = 49152
    for place in range(8):
        noise = gumbel(1, place, 0, vocab)
        lucky, other = int(np.argmax(noise)), place
        border = np.float32(noise[other] - noise[lucky])
        for step in range(-3, 4):
            logits = np.full(vocab, -INF)
            logits[[lucky, other]] = border + step * np.spacing(border), 0
            wish = record(place=place)
            expected = scores(logits, wish)
            assert abs(expected[lucky] - expected[other]) > 1e-9
            assert {isa.choose(logits, wish).token for isa in isas} == {int(np.argmax(expected))}


def test_scaling_out_of_range_is_greedy(native: NativeChoice) -> None:
    for logits in (np.array([1e30, 3e38, 2e38], np.float32), np.array([-3e38, -2e38, -3e38], np.float32)):
        wish = record(temperature=1e-5, top_p=0.5)
        assert native.choose(logits, wish).token == choose(logits, wish)[0] == int(np.argmax(logits))


# ---------------------------------------------------------------------------------------------------
# greedy, masks, faults


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_greedy_takes_the_lowest_of_equals(native: NativeChoice, temperature: float) -> None:
    logits = np.zeros(9000, np.float32)
    for winner in (0, 1, 15, 16, 63, 64, 4095, 4096, 8999):
        logits[:] = -1
        logits[winner:] = 2.5
        found = native.choose(logits, record(temperature=temperature, logprobs=3))
        assert (found.token, found.rank) == (winner, 1)
        expected = [*range(winner, min(winner + 3, 9000)), 0, 1][:3]
        assert found.top_ids.tolist() == expected


def test_zeros_of_both_signs_are_equal(isas: list[NativeChoice]) -> None:
    logits = np.array([-1.0, -0.0, 0.0, -0.0] + [-2.0] * 29, np.float32)
    for isa in isas:
        assert isa.choose(logits, record(temperature=0.0)).token == 1
        drawn = set(isa.draws(logits, record(top_k=1), 200).tolist())
        assert drawn == {1, 2, 3}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, 15, 16, 4095, 4096, 4999])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinity_are_faults(isas: list[NativeChoice], value: float, place: int, temperature: float) -> None:
    logits = ROWS["normal"](np.random.default_rng(0), 5000)
    logits[place] = value
    for isa in isas:
        found = isa.choose(logits, record(temperature=temperature, logprobs=2))
        assert (found.fault, found.token) == (1, 0)
        assert found.top_ids.tolist() == [-1, -1]
        assert (found.top_logprobs == -INF).all()


def test_a_row_of_nothing_is_a_fault(isas: list[NativeChoice]) -> None:
    for isa, vocab in product(isas, (1, 16, 5000)):
        assert isa.choose(np.full(vocab, -INF), record()).fault == 1
        assert isa.choose(np.full(vocab, np.float32(np.nan)), record()).fault == 1


def test_masked_chunks_are_no_fault(native: NativeChoice) -> None:
    logits = np.full(3 * CHUNK, -INF)
    logits[[5000, 5003, 9000]] = [1.0, 2.0, 2.0]
    for wish in WISHES:
        found = native.choose(logits, record(**wish, logprobs=5))
        assert found.fault == 0
        assert found.token in (5000, 5003, 9000)
        assert found.top_ids.tolist() == [5003, 9000, 5000, -1, -1]
        assert found.top_logprobs[:3] == pytest.approx(logits[[5003, 9000, 5000]] - lse(logits), abs=1e-6)
        assert (found.top_logprobs[3:] == -INF).all()


# ---------------------------------------------------------------------------------------------------
# log-probabilities


@pytest.mark.parametrize("vocab", [1, 3, 40, 4097, 49152])
def test_logprobs_come_from_the_raw_logits(native: NativeChoice, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for kind in ("normal", "tied", "peaked"):
        logits = ROWS[kind](rng, vocab)
        found = native.choose(logits, record(temperature=2.0, top_k=20, logprobs=20, seed=vocab))
        assert found.logprob == pytest.approx(float(logits[found.token]) - lse(logits), abs=4e-6)
        assert found.rank == 1 + int((logits > logits[found.token]).sum())
        order = np.argsort(-logits, kind="stable")[:20]
        assert found.top_ids[: len(order)].tolist() == order.tolist()
        assert (found.top_ids[len(order) :] == -1).all()
        assert found.top_logprobs[: len(order)] == pytest.approx(logits[order] - lse(logits), abs=4e-6)


def test_how_many_logprobs_are_asked_for_changes_nothing_else(native: NativeChoice) -> None:
    logits = ROWS["normal"](np.random.default_rng(4), 5000)

    def chosen(logprobs: int) -> Chosen:
        return native.choose(logits, record(logprobs=logprobs, place=9))

    assert len({(c.token, c.logprob.tobytes()) for c in map(chosen, (-1, 0, 1, 20))}) == 1
    assert chosen(-1).rank == 0
    assert len({chosen(n).rank for n in (0, 1, 20)}) == 1


def test_a_wide_tail_counts_for_top_p(native: NativeChoice) -> None:
    """Twenty thousand tokens that are each e^-16.5 of the first are a thousandth of all together."""
    logits = np.full(20_000, -16.5, np.float32)
    logits[700] = 0
    tail = 19_999 * np.exp(-16.5)
    share = tail / (1 + tail)
    drawn = native.draws(logits, record(top_p=1 - share / 4, seed=3), 8_000)
    rare = drawn[drawn != 700]
    assert len(rare) > 8_000 * share / 4, "the first alone does not reach top_p"
    assert rare.max() < 16_000, "ties go by the lower id"
