"""Longest cached prefix first, with ageing: what is there is used before something else takes its blocks.

A request is tried as if it had come SECONDS_A_TOKEN earlier for each token of its prompt that is cached, and
MOST_SECONDS earlier at most: so nobody is overtaken by one that came more than MOST_SECONDS after it. Of several that
begin alike the first is computed and the others wait for it, whatever the order. Paper: arXiv 2312.07104, section 3.
"""

from collections.abc import Iterable, Sequence

from pelton.schedule.order import LOOKED_AT, Order, QueueView
from pelton.schedule.tracked import NewRequest, Tracked

SECONDS_A_TOKEN = 1 / 100
MOST_SECONDS = 20.0


class LongestPrefixMatch(Order):
    """While they run the first to come ranks first, and the last to come gives way first."""

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        return (request.arrival, number)

    def victim(self, running: Sequence[Tracked]) -> int:
        return len(running) - 1

    def queue(self, waiting: Sequence[Tracked], view: QueueView) -> Iterable[Tracked]:
        def place(request: Tracked) -> tuple[float, tuple[float, ...]]:
            return request.asked.arrival - min(view.cached(request) * SECONDS_A_TOKEN, MOST_SECONDS), request.rank

        return (*sorted(waiting[:LOOKED_AT], key=place), *waiting[LOOKED_AT:])
