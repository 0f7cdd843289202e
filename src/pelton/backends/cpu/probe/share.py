"""share_of_limit: how near a step is to what its bytes allow, step and limits measured in turns in one process.

Machines change from second to second; what is measured in turns changes alike. It knows no model.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pelton.backends.cpu import _native
from pelton.backends.cpu.machine import choose_isa, worker_cores
from pelton.backends.cpu.probe.figures import Spread
from pelton.core.clock import Clock, SystemClock

LEAST_ALTERNATIONS = 9
EXPANSION_SECONDS = 0.004  # of each format in each alternation
BANDWIDTH, EXPANSION = "read bandwidth", "code expansion"


@dataclass(frozen=True, slots=True)
class Turns:
    """How often, and how many steps are one call of `step`: so many reads follow it."""

    alternations: int = LEAST_ALTERNATIONS
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of a step, of reading its bytes, and of unpacking its weights from the cache (None: not measured).

    `read_share`: of each alternation, seconds of reading over those of the step; `limit_share`: of the longer of both.
    """

    step_bytes: int
    alternations: int
    step_s: Spread
    read_s: Spread
    expansion_s: Spread | None
    read_share: Spread
    limit_share: Spread

    @property
    def read_bytes_per_s(self) -> float:
        """By the median of the reads."""
        return self.step_bytes / self.read_s.median

    @property
    def tighter(self) -> str:
        """Which of the two holds the step back."""
        slow = self.expansion_s is not None and self.expansion_s.median > self.read_s.median
        return EXPANSION if slow else BANDWIDTH


def share_of_limit(
    step: Callable[[], object],
    step_bytes: int,
    turns: Turns | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    threads: int = 0,
    clock: Clock | None = None,
) -> Share:
    """`step` and reads of `step_bytes`, in turns, on the cores that a step's `threads` run on.

    `weights`: bytes of the step's packed weights by format; the kernel in use unpacks them for one row. The first read
    after a step does not count: it finds what the step left in the caches. ValueError for fewer alternations than
    LEAST_ALTERNATIONS, or no bytes.
    """
    turns = turns or Turns()
    if turns.alternations < LEAST_ALTERNATIONS or turns.steps < 1 or step_bytes < 1:
        raise ValueError(f"{turns} of {step_bytes} bytes; {LEAST_ALTERNATIONS} alternations at least")
    clock = clock or SystemClock()
    probe = _native.Probe(worker_cores(threads))
    probe.read_once(step_bytes, True)  # the memory is there from now on
    steps, reads, expansions = [], [], []
    for _ in range(turns.alternations):
        start = clock.now()
        step()
        steps.append((clock.now() - start) / turns.steps)
        probe.read_once(step_bytes, True)
        reads.append(sum(probe.read_once(step_bytes, True) for _ in range(turns.steps)) / turns.steps)
        expansions.append(_expansion(probe, weights or {}))
    return Share(
        step_bytes,
        turns.alternations,
        Spread.of(steps),
        Spread.of(reads),
        Spread.of(expansions) if weights else None,
        Spread.of([read / taken for read, taken in zip(reads, steps, strict=True)]),
        Spread.of([max(pair) / taken for *pair, taken in zip(reads, expansions, steps, strict=True)]),
    )


def _expansion(probe: _native.Probe, weights: Mapping[str, int]) -> float:
    """Seconds for so many bytes of each packed format."""
    isa, sizes = choose_isa()[0], _native.packed_formats()
    seconds = 0.0
    for name, count in weights.items():
        blocks_per_s = statistics.median(probe.products(isa, name, 1, EXPANSION_SECONDS))
        seconds += count / (blocks_per_s * sizes[name])
    return seconds
