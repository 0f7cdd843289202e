"""Time, handed in: nothing else in the package reads the wall clock, so that tests and the simulator can set it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on a monotonic scale; only differences mean anything."""

    def now(self) -> float: ...


def cpu_seconds() -> float:
    """CPU time of this process so far, of all its threads."""
    return time.process_time()


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
