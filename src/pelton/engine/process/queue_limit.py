"""QueueLimit: whether one more request may wait, and when to ask again. It counts; it sends and keeps nothing.

A call is checked once, with all its sequences: an idle engine takes one of any size. Invariant: a request that finds a
free row, and memory, is never refused.
"""

from collections import deque

from pelton.core.clock import Clock
from pelton.core.counters import EngineStats
from pelton.core.errors import OverloadedError

REMEMBERED = 65  # the last times by which the pace of the queue is estimated
LONGEST_WAIT = 60.0


class QueueLimit:
    """`most`: sequences that may wait (0: any number) while `rows` are computed."""

    def __init__(self, most: int, rows: int, clock: Clock) -> None:
        self._most = most
        self._rows = rows
        self._clock = clock
        self._stats = EngineStats()
        self._unseen = 0
        # When the queue that stands now began, and when one of it was computed at last.
        self._marks: deque[float] = deque(maxlen=REMEMBERED)

    def sent(self, sequences: int) -> None:
        """So many are on their way to the engine."""
        self._unseen += sequences

    def seen(self, sequences: int) -> None:
        """The engine has received so many of those that were sent: the stats of its next step count them."""
        self._unseen -= sequences

    def step(self, stats: EngineStats, entered: int) -> None:
        """A step is over, in which so many sequences began to be computed."""
        self._stats = stats
        now = self._clock.now()
        if not self._queued(stats):
            self._marks.clear()
            return
        if not self._marks:
            self._marks.append(now)
        self._marks.extend([now] * min(entered, REMEMBERED))

    def reset(self) -> None:
        """The engine is a new one, to which nothing was sent."""
        self._stats = EngineStats()
        self._unseen = 0
        self._marks.clear()

    def check(self, sequences: int) -> None:
        """OverloadedError where so many more would have to wait, and as many as may wait already do."""
        queued = self._queued(self._stats)
        free = 0 if queued else max(0, self._rows - self._stats.running)
        waiting = queued + max(0, self._unseen - free)
        if self._most and waiting >= self._most and self._unseen + sequences > free:
            after = self._retry_after(waiting)
            raise OverloadedError(
                f"{waiting} requests wait already, and max_num_queued_reqs is {self._most}.",
                f"Try again in {after:.0f} second{'' if after == 1 else 's'}.",
                retry_after=after,
            )

    def _queued(self, stats: EngineStats) -> int:
        """How many wait for a row or for memory: without those for whom there are rows as soon as their turn comes."""
        return stats.waiting - min(stats.deferred, self._rows)

    def _retry_after(self, waiting: int) -> float:
        """Seconds in which those who wait now have entered, at the pace of the last ones; from 1 to LONGEST_WAIT."""
        if not self._marks:
            return 1.0
        # Up to now, not to the last entry: a queue that stands still gets slower.
        pace = (self._clock.now() - self._marks[0]) / max(1, len(self._marks) - 1)
        return min(LONGEST_WAIT, max(1.0, float(round(waiting * pace))))
