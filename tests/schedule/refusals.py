"""Refusals: allocations that fail though there is room, and what a scheduler's fetches come to; for state machines."""

from collections import Counter
from collections.abc import Sequence

from tests.schedule.traffic import Traffic

from pelton.kv.group import Held
from pelton.kv.tiers.worker import Done
from pelton.schedule.draft import Draft


class Refusals:
    """Of a request that runs, `blocks` times, once in a plan and while another runs, so that somebody gets on; and of
    host `slots`, so often, for anything.
    """

    def __init__(self, traffic: Traffic, seen: Counter[str]) -> None:
        self.blocks = self.slots = 0
        self._refuses = False
        self._seen = seen
        self._refuse_blocks(traffic)
        self._refuse_slots(traffic)
        self._count_fetches(traffic)
        check, outside = traffic.scheduler._forks.check, traffic.outside
        traffic.scheduler._forks.check = lambda: [*check(), *outside]  # type: ignore[method-assign]

    def _refuse_blocks(self, traffic: Traffic) -> None:
        scheduler = traffic.scheduler
        planner, blocks = scheduler._planner, scheduler._blocks
        continue_running, alloc = planner._continue_running, blocks.alloc

        def continued(draft: Draft) -> None:
            self._refuses = scheduler.num_running > 1
            continue_running(draft)
            self._refuses = False

        def refusing(count: int | Sequence[int]) -> Held | None:
            if self._refuses and self.blocks:
                self._refuses = False
                self.blocks -= 1
                self._seen["allocation refused"] += 1
                return None
            held = alloc(count)
            self._seen["allocation failed"] += held is None
            return held

        planner._continue_running = continued  # type: ignore[method-assign]
        blocks.alloc = refusing  # type: ignore[method-assign]

    def _refuse_slots(self, traffic: Traffic) -> None:
        host = traffic.scheduler.tiers.host
        alloc = host.alloc

        def refusing(counts: Sequence[int]) -> Held | None:
            if self.slots:
                self.slots -= 1
                self._seen["slots refused"] += 1
                return None
            slots = alloc(counts)
            self._seen["no slots left"] += slots is None
            return slots

        host.alloc = refusing  # type: ignore[method-assign]

    def _count_fetches(self, traffic: Traffic) -> None:
        fetches = traffic.scheduler.tiers.fetches
        assert fetches is not None
        abandon, took = fetches.abandon, fetches.took

        def abandoned() -> None:
            self._seen["waits given up"] += fetches.deferred
            abandon()

        def taken(done: Done) -> None:
            self._seen["answered too late"] += fetches._reading[done.job] in fetches._left
            took(done)

        fetches.abandon = abandoned  # type: ignore[method-assign]
        fetches.took = taken  # type: ignore[method-assign]
