"""Shortest first: by how many tokens of a request are still to be computed before its next one, with ageing.

What is cached need not be computed. A request is tried as if it had come SECONDS_A_TOKEN later for each token, and
MOST_SECONDS later at most: so nobody is overtaken by one that came more than MOST_SECONDS after it.
"""

from pelton.schedule.order import ByShiftedArrival, QueueView
from pelton.schedule.tracked import Tracked

SECONDS_A_TOKEN = 1 / 100
MOST_SECONDS = 20.0


class ShortestJobFirst(ByShiftedArrival):
    """By arrival, and what is to be computed."""

    def shift(self, request: Tracked, view: QueueView) -> float:
        return min((request.total - view.cached(request)) * SECONDS_A_TOKEN, MOST_SECONDS)
