"""The native choice of a token as functions on numpy arrays, and rows of logits to try it on.

What it is not: a test. Invariant: what a kernel must write starts as garbage, and memory behind its scratch is guarded.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tests.native.isas import ISAS
from tests.native.probe import Probe

from pelton.backends.backend import EDIT, SAMPLING, Records

Floats = npt.NDArray[np.float32]

INF = np.float32(np.inf)
CHUNK = 4096
STATS = np.dtype([("max", np.float32), ("argmax", np.int32), ("sum", np.float32), ("bad", np.int32)])
NO_EDITS: Records = np.zeros(0, EDIT)
CHOICE = np.dtype([("token", np.int32), ("logprob", np.float32), ("rank", np.int32), ("fault", np.int32)])


@dataclass(frozen=True, slots=True)
class Chosen:
    """What one row gave: the Choice and the top entries."""

    token: int
    logprob: np.float32
    rank: int
    fault: int
    top_ids: npt.NDArray[np.int32]
    top_logprobs: Floats

    def bits(self) -> tuple[object, ...]:
        """All of it, comparable to the bit."""
        return (
            self.token,
            self.logprob.tobytes(),
            self.rank,
            self.fault,
            self.top_ids.tobytes(),
            self.top_logprobs.tobytes(),
        )


def record(**fields: float | np.number) -> np.void:
    """A SAMPLING record; what is not given is off."""
    neutral: dict[str, float | np.number] = {
        "seed": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "logprobs": -1,
        "repetition": 1.0,
        "target": -1,
    }
    made: np.void = np.zeros(1, SAMPLING)[0]
    for name, value in {**neutral, **fields}.items():
        made[name] = value
    return made


class NativeChoice:
    """The kernels of one instruction set."""

    def __init__(self, library: ctypes.CDLL, isa: int) -> None:
        self._library = library
        self._isa = isa
        self.name = ISAS[isa]

    def stats(self, logits: Floats, first: int, count: int) -> np.void:
        """STATS of the chunk [first, first + count)."""
        made = np.full(1, 7, STATS)
        self._library.choose_probe_stats(self._isa, _pointer(logits), first, count, _pointer(made))
        found: np.void = made[0]
        return found

    def choose(self, logits: Floats, wish: np.void, edits: Records = NO_EDITS) -> Chosen:
        """The choice for one row [vocab]; edits [any] of EDIT."""
        top = max(0, int(wish["logprobs"]))
        ids, logprobs = np.full(top + 1, 77, np.int32), np.full(top + 1, 77, np.float32)
        choice, wishes = np.full(1, 7, CHOICE), np.array([wish], SAMPLING)
        intact = self._library.choose_probe_choose(
            self._isa,
            _pointer(logits),
            len(logits),
            _pointer(wishes),
            _pointer(edits),
            len(edits),
            _pointer(choice),
            _pointer(ids),
            _pointer(logprobs),
        )
        assert intact, "the kernel wrote behind its scratch memory"
        assert (ids[top], logprobs[top]) == (77, 77)
        token, logprob, rank, fault = choice[0]
        return Chosen(int(token), logprob, int(rank), int(fault), ids[:top], logprobs[:top])

    def draws(self, logits: Floats, wish: np.void, count: int) -> npt.NDArray[np.int32]:
        """Tokens [count] drawn at consecutive places, from the record's on."""
        tokens, wishes = np.full(count, -7, np.int32), np.array([wish], SAMPLING)
        self._library.choose_probe_draws(
            self._isa, _pointer(logits), len(logits), _pointer(wishes), count, _pointer(tokens)
        )
        return tokens


def native_choices(library: ctypes.CDLL, probes: list[Probe]) -> list[NativeChoice]:
    """One for each instruction set of this CPU, the portable one first."""
    return [NativeChoice(library, ISAS.index(probe.name)) for probe in probes]


def _pointer(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


# ---------------------------------------------------------------------------------------------------
# rows of logits


def _normal(rng: np.random.Generator, vocab: int) -> Floats:
    return rng.normal(0, 3, vocab).astype(np.float32)


def _peaked(rng: np.random.Generator, vocab: int) -> Floats:
    logits = rng.normal(-5, 2, vocab)
    logits[rng.integers(0, vocab, 5)] += rng.uniform(5, 20, 5)
    return logits.astype(np.float32)


def _tied(rng: np.random.Generator, vocab: int) -> Floats:
    return np.round(rng.normal(0, 2, vocab)).astype(np.float32)


def _equal(rng: np.random.Generator, vocab: int) -> Floats:
    return np.full(vocab, rng.normal(), np.float32)


def _masked(rng: np.random.Generator, vocab: int) -> Floats:
    logits = np.full(vocab, -INF)
    legal = rng.integers(0, vocab, 7)
    logits[legal] = rng.normal(0, 1, 7)
    return logits


def _climbing(rng: np.random.Generator, vocab: int) -> Floats:
    return (np.arange(vocab) * np.float32(rng.uniform(0.0001, 0.1)) - 30).astype(np.float32)


def _spread(rng: np.random.Generator, vocab: int) -> Floats:
    return (rng.normal(0, 1, vocab) * 10.0 ** rng.uniform(-30, 30, vocab)).astype(np.float32)


ROWS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": _normal,
    "peaked": _peaked,
    "tied": _tied,
    "equal": _equal,
    "masked": _masked,
    "climbing": _climbing,
    "spread": _spread,
}
