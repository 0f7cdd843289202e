"""Edits of logits before the choice: their arithmetic and order, what they leave alone, bans, targets."""

import ctypes
from itertools import permutations

import numpy as np
import pytest
from tests.native.choose_case import INF, ROWS, Floats, NativeChoice, native_choices, record
from tests.native.probe import Probe

from pelton.backends.backend import ALLOWED, EDIT, FAULT_BAD_LOGITS, FAULT_NO_TOKEN, ONLY_ALLOWED, SEEN, Records

PENALTIES = {"repetition": 1.3, "frequency": 0.7, "presence": 0.1}
WISHES = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 20},
    {"temperature": 1.2, "top_p": 0.95, "top_k": 200, "min_p": 1e-3},
)


@pytest.fixture(scope="module")
def isas(native_library: ctypes.CDLL, probes: list[Probe]) -> list[NativeChoice]:
    return native_choices(native_library, probes)


@pytest.fixture(scope="module")
def native(isas: list[NativeChoice]) -> NativeChoice:
    """The widest instruction set of this CPU."""
    return isas[-1]


def edits_of(*entries: tuple[int, float | np.floating, int, int]) -> Records:
    """(token, bias, count, flags) each."""
    return np.array(list(entries), EDIT)


def random_edits(rng: np.random.Generator, vocab: int, count: int) -> Records:
    edits = np.zeros(count, EDIT)
    edits["token"] = rng.permutation(vocab)[:count]
    edits["bias"] = rng.normal(0, 4, count) * rng.integers(0, 2, count)
    edits["bias"][rng.random(count) < 0.2] = -INF
    edits["count"] = rng.integers(0, 4, count)
    edits["flags"] = rng.integers(0, 4, count)
    return edits


def edited(logits: Floats, wish: np.void, edits: Records) -> Floats:
    """All edits at once, in numpy's fp32: another way to the same row."""
    token, bias, count = edits["token"], edits["bias"], edits["count"]
    x = logits[token] + bias
    below = np.where(x < 0, x * wish["repetition"], x / wish["repetition"])
    x = np.where(edits["flags"] & SEEN, below, x)
    x = x - wish["frequency"] * count.astype(np.float32)
    x = np.where(count > 0, x - wish["presence"], x)
    if wish["flags"] & ONLY_ALLOWED:
        row = np.full_like(logits, -INF)
        allowed = (edits["flags"] & ALLOWED) != 0
        row[token[allowed]] = x[allowed]
        return row
    row = logits.copy()
    row[token] = x
    return row


@pytest.mark.parametrize("kind", ["normal", "peaked", "tied", "masked"])
@pytest.mark.parametrize("vocab", [1, 15, 64, 1000, 4097, 49152])
def test_the_choice_is_that_of_the_edited_row(isas: list[NativeChoice], vocab: int, kind: str) -> None:
    """To the bit on every instruction set; and log-probability, rank and tops are the raw row's."""
    rng = np.random.default_rng(vocab)
    logits, drawn = ROWS[kind](rng, vocab), set[int]()
    for number, wish in enumerate(WISHES * 4):
        flags = ONLY_ALLOWED if number % 3 == 0 else 0
        wanted = record(**wish, **PENALTIES, flags=flags, seed=rng.integers(0, 2**63), place=number, logprobs=3)
        edits = random_edits(rng, vocab, int(rng.integers(1, min(vocab, 300) + 1)))
        first, *others = (isa.choose(logits, wanted, edits) for isa in isas)
        assert {other.bits() for other in others} <= {first.bits()}
        row = edited(logits, wanted, edits)
        if row.max() == -INF:
            assert (first.fault, first.token, first.rank) == (FAULT_NO_TOKEN, 0, 0)
            assert first.top_ids.tolist() == [-1, -1, -1]
            continue
        free = wanted.copy()
        free["flags"] = 0
        assert first.fault == 0
        assert first.token == isas[0].choose(row, free).token
        raw = isas[0].choose(logits, record(target=first.token, logprobs=3))
        assert first.bits() == raw.bits()
        drawn.add(first.token)
    assert len(drawn) > 5 or vocab < 64 or kind == "masked"


def test_no_edits_and_neutral_edits_change_nothing(isas: list[NativeChoice]) -> None:
    rng = np.random.default_rng(5)
    for make in (ROWS["normal"], ROWS["peaked"], ROWS["tied"]):
        logits = make(rng, 5000)
        for place, wish in enumerate(WISHES):
            wanted = record(**wish, place=place, logprobs=2)
            neutral = np.zeros(100, EDIT)
            neutral["token"] = rng.permutation(5000)[:100]
            neutral["flags"] = SEEN
            assert (
                len({isa.choose(logits, wanted, edits).bits() for isa in isas for edits in (neutral[:0], neutral)}) == 1
            )


def test_order_and_rounding_of_the_operations(isas: list[NativeChoice]) -> None:
    """Token 0 is edited, token 1 stands at the wanted number or one float above: the choice tells them apart."""
    f = np.float32
    bias, repetition, frequency, presence = f(0.1), f(1.1), f(0.3), f(0.7)

    def steps(x: np.float32, order: tuple[str, ...]) -> np.float32:
        for name in order:
            if name == "bias":
                x = f(x + bias)
            elif name == "repetition":
                x = f(x * repetition) if x < 0 else f(x / repetition)
            elif name == "frequency":
                x = f(x - f(frequency * f(3)))
            else:
                x = f(x - presence)
        return x

    names = ("bias", "repetition", "frequency", "presence")
    told_apart = set()
    for x in (f(2.3), f(-1.7), f(-0.05), f(-6.4)):
        wanted = steps(x, names)
        told_apart |= {order for order in permutations(names) if steps(x, order) != wanted}
        wish = record(temperature=0.0, repetition=repetition, frequency=frequency, presence=presence)
        for other, token in ((wanted, 0), (np.nextafter(wanted, INF), 1)):  # of equals the lower id
            row = np.array([x, other], np.float32)
            assert {isa.choose(row, wish, edits_of((0, bias, 3, SEEN))).token for isa in isas} == {token}
    assert len(told_apart) == 23


def test_the_product_is_rounded_before_the_difference(isas: list[NativeChoice]) -> None:
    """A fused multiplication and subtraction would give another number."""
    f = np.float32
    frequency, x = f(0.1), f(0.17)
    rounded, fused = f(x - f(frequency * f(7))), f(float(x) - float(frequency) * 7)
    assert rounded != fused
    row, wish = np.array([x, max(rounded, fused)], np.float32), record(temperature=0.0, frequency=frequency)
    for isa in isas:
        assert isa.choose(row, wish, edits_of((0, 0, 7, 0))).token == int(rounded < fused)


@pytest.mark.parametrize(
    ("edit", "wish", "wanted"),
    [
        ((0, 1.0, 0, 0), {}, 3.0),
        ((0, 0.0, 5, 0), {"repetition": 2.0}, 2.0),  # counted, not seen
        ((0, 0.0, 0, SEEN), {"repetition": 2.0}, 1.0),
        ((0, -4.0, 0, SEEN), {"repetition": 2.0}, -4.0),
        ((0, 0.0, 3, 0), {"frequency": 0.5}, 0.5),
        ((0, 0.0, 3, 0), {"presence": 0.5}, 1.5),
        ((0, 0.0, 0, SEEN), {"presence": 0.5, "frequency": 0.5}, 2.0),  # seen in the prompt only
        ((0, 0.0, 2, SEEN), {"presence": -0.5, "frequency": -0.25}, 3.0),
    ],
)
def test_each_penalty_alone(
    isas: list[NativeChoice], edit: tuple[int, float, int, int], wish: dict[str, float], wanted: float
) -> None:
    for other, token in ((wanted, 0), (np.nextafter(np.float32(wanted), INF), 1)):
        row = np.array([2.0, other], np.float32)
        assert {isa.choose(row, record(temperature=0.0, **wish), edits_of(edit)).token for isa in isas} == {token}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_banned_is_a_fault_of_its_own(isas: list[NativeChoice], temperature: float) -> None:
    vocab = 70
    logits = ROWS["normal"](np.random.default_rng(1), vocab)
    bans = np.zeros(vocab, EDIT)
    bans["token"], bans["bias"] = np.arange(vocab), -INF
    for isa in isas:
        for edits, flags in ((bans, 0), (bans[:0], ONLY_ALLOWED), (bans, ONLY_ALLOWED)):
            found = isa.choose(logits, record(temperature=temperature, flags=flags, logprobs=2), edits)
            assert (found.token, found.fault, found.rank) == (0, FAULT_NO_TOKEN, 0)
            assert found.top_ids.tolist() == [-1, -1]
        one_left = np.delete(bans, 33)
        assert isa.choose(logits, record(temperature=temperature), one_left).token == 33


def test_allowed_tokens_only(isas: list[NativeChoice]) -> None:
    logits = ROWS["normal"](np.random.default_rng(2), 5000)
    allowed = (3, 1700, 4999)
    logits[list(allowed)] = -1.0, -1.5, -0.5
    edits = edits_of(*((token, 0, 0, ALLOWED) for token in allowed), (4, 50.0, 0, SEEN))
    for isa in isas:
        seen = {isa.choose(logits, record(flags=ONLY_ALLOWED, place=place), edits).token for place in range(60)}
        assert seen == set(allowed)
    banned = edits_of((3, -INF, 0, ALLOWED), (1700, 0, 0, ALLOWED))
    assert {isa.choose(logits, record(flags=ONLY_ALLOWED), banned).token for isa in isas} == {1700}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_logits_stay_bad_under_a_ban(isas: list[NativeChoice], value: float) -> None:
    logits = ROWS["normal"](np.random.default_rng(0), 5000)
    logits[4200] = value
    for isa in isas:
        for wish in (record(), record(temperature=0.0), record(target=1)):
            assert isa.choose(logits, wish, edits_of((4200, -INF, 0, 0))).fault == FAULT_BAD_LOGITS


def test_infinities_made_by_edits_are_no_nan(isas: list[NativeChoice]) -> None:
    """A penalty out of fp32's range: an infinite logit wins, the difference of two infinities counts as -inf."""
    logits = np.array([1.0, -INF, 2.0, 3.0], np.float32)
    huge = record(temperature=0.0, frequency=-3e38)
    wide = record(temperature=1.0, repetition=1e-38)
    for isa in isas:
        assert isa.choose(logits, huge, edits_of((1, 0, 9, 0), (0, 0, 9, 0))).token == 0
        assert isa.choose(logits, wide, edits_of((2, 3e38, 0, SEEN))).token == 2
        assert isa.choose(np.full(4, -INF), huge, edits_of((1, 0, 9, 0))).fault == FAULT_BAD_LOGITS


@pytest.mark.parametrize("vocab", [1, 40, 4097])
def test_targets_are_told_as_they_are(isas: list[NativeChoice], vocab: int) -> None:
    """Nothing is drawn or edited; log-probability, rank and tops are those of a draw that happens to give the token."""
    rng = np.random.default_rng(vocab)
    logits = ROWS["normal"](rng, vocab)
    lse = np.logaddexp.reduce(logits.astype(np.float64))
    bans = edits_of(*((token, -INF, 0, 0) for token in range(vocab)))
    for target in {0, vocab - 1, int(rng.integers(vocab))}:
        for wish in ({"temperature": 0.0}, {"top_k": 1}, {"flags": ONLY_ALLOWED}):
            found = [isa.choose(logits, record(**wish, target=target, logprobs=4), bans) for isa in isas]
            assert len({one.bits() for one in found}) == 1
            assert (found[0].token, found[0].fault) == (target, 0)
            assert found[0].rank == 1 + int((logits > logits[target]).sum())
            assert found[0].logprob == pytest.approx(float(logits[target] - lse), abs=4e-6)
            assert found[0].top_ids.tolist()[: min(4, vocab)] == np.argsort(-logits, kind="stable")[:4].tolist()


def test_a_target_may_be_hidden(native: NativeChoice) -> None:
    logits = np.array([0.0, -INF, 1.0], np.float32)
    found = native.choose(logits, record(target=1, logprobs=0))
    assert (found.token, found.logprob, found.rank, found.fault) == (1, -INF, 3, 0)
