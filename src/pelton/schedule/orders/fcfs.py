"""First come, first served: by arrival, then by the order of being added. The last to come gives way first."""

from pelton.schedule.order import ByArrival


class FirstComeFirstServed(ByArrival):
    """Nobody starves: whoever waits moves up with each request that ends."""
