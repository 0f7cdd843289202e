"""Advice on preemptions: one sentence with figures when they are more than occasional. It changes nothing.

Invariant: at most one sentence in EVERY_SECONDS, however bad it is.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.counters import EngineStats
from pelton.core.events import Event, RequestPreempted, RequestScheduled

WINDOW_SECONDS = 60.0
EVERY_SECONDS = 600.0
LEAST = 10  # preemptions in the window below which nothing is said
SHARE = 0.2  # of the times a request began in the window


@dataclass(slots=True)
class _Moment:
    seconds: float
    preempted: int
    began: int


class PreemptionAdvice:
    """`rows`: max_num_seqs."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._moments: deque[_Moment] = deque()
        self._preempted = 0
        self._began = 0
        self._said: float | None = None

    def saw(self, events: Sequence[Event], stats: EngineStats, now: float) -> str | None:
        """A step is over; the sentence, where it is time for one."""
        began = preempted = 0
        for event in events:
            began += isinstance(event, RequestScheduled)
            preempted += isinstance(event, RequestPreempted)
        if began or preempted:
            self._moments.append(_Moment(now, preempted, began))
            self._preempted += preempted
            self._began += began
        while self._moments and self._moments[0].seconds < now - WINDOW_SECONDS:
            old = self._moments.popleft()
            self._preempted -= old.preempted
            self._began -= old.began
        if not preempted or self._preempted < LEAST or self._preempted <= SHARE * self._began:
            return None
        if self._said is not None and now < self._said + EVERY_SECONDS:
            return None
        self._said = now
        return self._sentence(now, stats)

    def _sentence(self, now: float, stats: EngineStats) -> str:
        seconds = max(1, round(now - self._moments[0].seconds))
        fits = min(max(1, stats.running), self._rows)
        return (
            f"{self._preempted} preemptions in {seconds} s, for {self._began} starts of requests: the KV cache has "
            f"{stats.kv_blocks} blocks, and requests that run together need more. What they lost is computed again or "
            "copied twice. "
            f"Raise kv_cache_memory_bytes, or set max_num_seqs={fits}: so many fit at present."
        )
