"""First come, first served: by arrival, then by the order of being added. The last to come gives way first."""

from collections.abc import Sequence

from pelton.schedule.order import Order
from pelton.schedule.tracked import NewRequest, Tracked


class FirstComeFirstServed(Order):
    """Nobody starves: whoever waits moves up with each request that ends."""

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        return (request.arrival, number)

    def victim(self, running: Sequence[Tracked]) -> int:
        return len(running) - 1
