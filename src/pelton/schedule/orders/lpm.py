"""Longest cached prefix first, with ageing: what is there is used before something else takes its blocks.

A request is tried as if it had come SECONDS_A_TOKEN earlier for each token of its prompt that is cached, and
MOST_SECONDS earlier at most: so nobody is overtaken by one that came more than MOST_SECONDS after it. Of several that
begin alike the first is computed and the others wait for it, whatever the order. Paper: arXiv 2312.07104, section 3.
"""

from typing import ClassVar

from pelton.schedule.order import ByShiftedArrival, QueueView
from pelton.schedule.tracked import Tracked

SECONDS_A_TOKEN = 1 / 100
MOST_SECONDS = 20.0


class LongestPrefixMatch(ByShiftedArrival):
    """By arrival, less what is cached."""

    heeds_cache: ClassVar[bool] = True

    def shift(self, request: Tracked, view: QueueView) -> float:
        return -min(view.cached(request) * SECONDS_A_TOKEN, MOST_SECONDS)
