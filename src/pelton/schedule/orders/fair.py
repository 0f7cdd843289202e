"""Fair shares between owners of requests by virtual token counters. Paper: arXiv 2401.00588 (VTC), algorithm 2.

Each owner's counter says what it was served, over its weight: of a prompt the tokens computed, of an answer twice as
much. The owner with the smallest counter is tried first, with its first request. One that comes back after an absence
begins where those who waited meanwhile are: nobody saves up. Bound, as proven there: of two owners that both wait all
the time neither is served more than 2 max(longest prompt, 2 x tokens that the KV memory holds) beyond the other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heapreplace
from typing import ClassVar

from pelton.schedule.order import ByArrival, QueueView
from pelton.schedule.tracked import Tracked

ANSWER_TOKEN = 2.0  # what a token of an answer counts; one of a prompt counts 1
MOST_OWNERS = 4096  # counters kept of owners nobody of whom waits


class FairShares(ByArrival):
    """See the module."""

    heeds_owner: ClassVar[bool] = True

    def __init__(self) -> None:
        self._weights: Mapping[str, float] = {}
        self._counters: dict[str, float] = {}
        self._waiting: Set[str] = frozenset()
        self._level = 0.0  # of the owner that left the queue last

    def weigh(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)

    def served(self, request: Tracked, tokens: int) -> None:
        answer = min(tokens, max(0, request.computed - request.asked.prompt))
        self._charge(request.asked.owner, tokens - answer + ANSWER_TOKEN * answer)

    def queue(self, waiting: Sequence[Tracked], view: QueueView) -> Iterable[Tracked]:
        by_owner: dict[str, list[Tracked]] = {}
        for request in waiting:
            by_owner.setdefault(request.asked.owner, []).append(request)
        self._enter(by_owner.keys())
        if len(by_owner) == 1:
            return waiting
        return self._merged(by_owner, view)

    def _merged(self, by_owner: Mapping[str, list[Tracked]], view: QueueView) -> Iterator[Tracked]:
        """The first of the owner with the smallest counter, which it is then charged for, and so on."""
        heads = [(self._counters[owner], listed[0].rank, owner, 0) for owner, listed in by_owner.items()]
        heapify(heads)
        while heads:
            counter, _, owner, place = heads[0]
            listed = by_owner[owner]
            yield listed[place]
            counter += max(1, listed[place].total - view.cached(listed[place])) / self._weight(owner)
            if place + 1 < len(listed):
                heapreplace(heads, (counter, listed[place + 1].rank, owner, place + 1))
            else:
                heappop(heads)

    def _enter(self, owners: Set[str]) -> None:
        """These wait now. Who did not before is lifted to the least of those who did, or to whoever left last."""
        stayed, came, left = owners & self._waiting, owners - self._waiting, self._waiting - owners
        if left:
            self._level = max(self._counters[owner] for owner in left)
        level = min((self._counters[owner] for owner in stayed), default=self._level)
        for owner in came:
            self._counters[owner] = max(self._counters.get(owner, 0.0), level)
        self._waiting = frozenset(owners)
        self._forget(owners)

    def _forget(self, owners: Set[str]) -> None:
        """Those behind all who wait: when they come back they are lifted beyond what they had."""
        if not owners or len(self._counters) <= MOST_OWNERS + len(owners):
            return
        least = min(self._counters[owner] for owner in owners)
        self._counters = {
            owner: counter for owner, counter in self._counters.items() if owner in owners or counter > least
        }

    def _charge(self, owner: str, tokens: float) -> None:
        self._counters[owner] = self._counters.get(owner, 0.0) + tokens / self._weight(owner)

    def _weight(self, owner: str) -> float:
        return self._weights.get(owner, 1.0)
