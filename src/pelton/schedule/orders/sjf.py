"""Shortest first: by how many tokens of a request are still to be computed before its next one, with ageing.

What is cached need not be computed. A request is tried as if it had come SECONDS_A_TOKEN later for each token, and
MOST_SECONDS later at most: so nobody is overtaken by one that came more than MOST_SECONDS after it.
"""

from collections.abc import Iterable, Sequence

from pelton.schedule.order import LOOKED_AT, Order, QueueView
from pelton.schedule.tracked import NewRequest, Tracked

SECONDS_A_TOKEN = 1 / 100
MOST_SECONDS = 20.0


class ShortestJobFirst(Order):
    """While they run the first to come ranks first, and the last to come gives way first."""

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        return (request.arrival, number)

    def victim(self, running: Sequence[Tracked]) -> int:
        return len(running) - 1

    def queue(self, waiting: Sequence[Tracked], view: QueueView) -> Iterable[Tracked]:
        def place(request: Tracked) -> tuple[float, tuple[float, ...]]:
            tokens = request.total - view.cached(request)
            return request.asked.arrival + min(tokens * SECONDS_A_TOKEN, MOST_SECONDS), request.rank

        return (*sorted(waiting[:LOOKED_AT], key=place), *waiting[LOOKED_AT:])
