"""By priority (a smaller value goes first) with ageing: each level of priority is worth a fixed head start in time.

So a request of priority p waits behind those of priority q < p that arrived before it or within (p - q) *
AGEING_SECONDS after it, and behind no later ones: a stream of urgent requests delays it by that much at most.
"""

from collections.abc import Sequence
from typing import ClassVar

from pelton.schedule.order import Order
from pelton.schedule.tracked import NewRequest, Tracked

AGEING_SECONDS = 10.0
MOST = 1 << 31  # priorities beyond count as this: a head start must stay exact enough beside an arrival


class Priority(Order):
    """The order of two requests never changes. The last one gives way first."""

    heeds_priority: ClassVar[bool] = True

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        priority = min(max(request.priority, -MOST), MOST)
        return (priority * AGEING_SECONDS + request.arrival, number)

    def victim(self, running: Sequence[Tracked]) -> int:
        return len(running) - 1
