"""Finds repetitions in a list: how a model's equal layers are shown once. It knows nothing of models."""

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 64  # ops of one layer


@dataclass(frozen=True, slots=True)
class Run:
    """Items [start, start + length), `times` times in a row."""

    start: int
    length: int
    times: int


def fold(items: Sequence[object]) -> list[Run]:
    """Runs that make up the list, in order: at each place the repetition that covers most, of these the shortest."""
    runs: list[Run] = []
    single = place = 0
    while place < len(items):
        best = _repetition(items, place)
        if best is None:
            place += 1
            continue
        if single < place:
            runs.append(Run(single, place - single, 1))
        runs.append(best)
        single = place = best.start + best.length * best.times
    if single < len(items):
        runs.append(Run(single, len(items) - single, 1))
    return runs


def _repetition(items: Sequence[object], start: int) -> Run | None:
    best: Run | None = None
    for length in range(1, min(LONGEST, (len(items) - start) // 2) + 1):
        end = start + length
        while end < len(items) and items[end] == items[end - length]:
            end += 1
        times = (end - start) // length
        if times > 1 and (best is None or times * length > best.times * best.length):
            best = Run(start, length, times)
    return best
