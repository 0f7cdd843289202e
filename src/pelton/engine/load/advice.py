"""Advice: what an engine says while it runs when its settings do not fit what is asked of it. It changes nothing.

Invariant: each kind of advice is seldom; how seldom is its own business.
"""

from collections.abc import Sequence
from typing import Protocol

from pelton.core.counters import EngineStats
from pelton.core.events import Event
from pelton.engine.load.preemptions import PreemptionAdvice


class Adviser(Protocol):
    """One kind of advice."""

    def saw(self, events: Sequence[Event], stats: EngineStats, now: float) -> str | None:
        """A step is over: a sentence with figures and a remedy, where it is time for one."""
        ...


class Advice:
    """All kinds. `rows`: max_num_seqs."""

    def __init__(self, rows: int) -> None:
        self._advisers: tuple[Adviser, ...] = (PreemptionAdvice(rows),)

    def saw(self, events: Sequence[Event], stats: EngineStats, now: float) -> list[str]:
        """The sentences of a step that is over."""
        return [said for one in self._advisers if (said := one.saw(events, stats, now)) is not None]
