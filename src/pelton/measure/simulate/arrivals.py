"""Arrivals: a trace made to fit a model and a pace. All lengths are scaled by one factor, and shared pieces with them.

Draws no lengths and runs nothing. Invariant: two prompts that begin with the same pieces begin with the same token ids,
and no others do (but by a chance that does not happen in practice).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from pelton.core.errors import SettingError
from pelton.measure.simulate.trace import Call, Trace

MASK = (1 << 64) - 1
# SplitMix64's constants.
STRIDE, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
LEAST = 2  # tokens of a prompt and its answer: fewer is no request


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a trace is replayed, and how. `count`: the first calls, None for all. `scale` None: 1, or whatever makes
    the longest call fit. `speed`: times pass so many times as fast; `rate` instead: calls a second on average; for a
    trace without times moments are drawn for it, by the gamma distribution whose shape is `burstiness`.
    """

    count: int | None = None
    scale: float | None = None
    speed: float = 1.0
    rate: float | None = None
    burstiness: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to be made: seconds from the start, tokens of prompt and answer, and what the prompt is made of:
    (id, tokens) of pieces, the last of them nobody else's where it shares nothing.
    """

    number: int
    at: float
    prompt: int
    output: int
    pieces: tuple[tuple[int, int], ...]
    client: str = ""

    def ids(self, vocab: int) -> NDArray[np.int32]:
        """The prompt's token ids [prompt], below `vocab`."""
        return np.concatenate([drawn_ids(piece, tokens, vocab) for piece, tokens in self.pieces])


@dataclass(frozen=True, slots=True)
class Prepared:
    """`scale`: by which all lengths were multiplied. `cut`: calls that were shortened still, since with their answer
    they were too long. `offered`: calls a second, None where all come at once.
    """

    arrivals: tuple[Arrival, ...]
    scale: float
    cut: int = 0

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.arrivals[-1].at - self.arrivals[0].at

    @property
    def offered(self) -> float | None:
        return (len(self.arrivals) - 1) / self.seconds if self.seconds else None


def prepare(trace: Trace, choice: Choice, max_len: int) -> Prepared:
    """The chosen calls for a model that takes `max_len` tokens with the answer. SettingError where none is left, and
    where a speed is asked of a trace that has no times.
    """
    calls = trace.calls if choice.count is None else trace.calls[: choice.count]
    if not calls:
        raise SettingError("No request of the trace is left.", "Ask for more of them.")
    if max_len < LEAST:
        raise SettingError(f"max_model_len={max_len} leaves no room for a prompt and an answer.", "Set more.")
    longest = max(call.prompt + max(call.output, 1) for call in calls)
    scale = min(1.0, max_len / longest) if choice.scale is None else choice.scale
    moments = _moments(trace, calls, choice)
    arrivals, cut = [], 0
    for number, (call, at) in enumerate(zip(calls, moments, strict=True)):
        prompt, output = max(1, round(call.prompt * scale)), max(1, round(call.output * scale))
        fits = min(prompt, max_len - 1), min(output, max(1, max_len - min(prompt, max_len - 1)))
        cut += fits != (prompt, output) and choice.scale is not None
        pieces = _pieces(call, number, fits[0], trace.piece * scale)
        arrivals.append(Arrival(number, at, *fits, pieces, call.client))
    return Prepared(tuple(arrivals), scale, cut)


def _moments(trace: Trace, calls: Sequence[Call], choice: Choice) -> list[float]:
    """Seconds from the start, of each call."""
    if not trace.timed:
        if choice.speed != 1.0:
            raise SettingError("The trace has no times that a speed could change.", "Give a rate instead.")
        return _drawn(len(calls), choice)
    span = calls[-1].at - calls[0].at
    speed = choice.speed
    if choice.rate is not None:
        if not span:
            return _drawn(len(calls), choice)
        speed = choice.rate * span / (len(calls) - 1)
    return [(call.at - calls[0].at) / speed for call in calls]


def _drawn(count: int, choice: Choice) -> list[float]:
    if choice.rate is None:
        return [0.0] * count
    random, due, moments = Random(choice.seed), 0.0, []
    for _ in range(count):
        moments.append(due)
        due += random.gammavariate(choice.burstiness, 1 / (choice.rate * choice.burstiness))
    return moments


def _pieces(call: Call, number: int, prompt: int, piece: float) -> tuple[tuple[int, int], ...]:
    """Borders of pieces depend on their place alone, so that scaled prompts share what the real ones did."""
    if not call.pieces:
        return ((-number - 1, prompt),)
    made, start = [], 0
    for place, name in enumerate(call.pieces):
        last = place == len(call.pieces) - 1
        end = prompt if last else min(prompt, round((place + 1) * piece))
        if end > start:
            made.append((name, end - start))
        start = max(start, end)
    return tuple(made)


def drawn_ids(piece: int, tokens: int, vocab: int) -> NDArray[np.int32]:
    """Token ids of the first `tokens` of a piece: always the same for it, and others for any other piece."""
    state = np.arange(1, tokens + 1, dtype=np.uint64) * np.uint64(STRIDE)
    state += np.uint64(_mixed(piece & MASK))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    return ((state ^ (state >> np.uint64(31))) % np.uint64(vocab)).astype(np.int32)


def _mixed(number: int) -> int:
    number = (number * STRIDE + SECOND) & MASK
    number = ((number ^ (number >> 32)) * FIRST) & MASK
    return number ^ (number >> 29)
