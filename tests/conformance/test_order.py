"""Every order: ranks are total and stable, victims lie in range, and a scheduler that uses it finishes everything."""

import pytest
from registry_entries import entries

from pelton.core.config import ScheduleSection
from pelton.kv.pool import BlockPool
from pelton.kv.table import BlockTable
from pelton.schedule import ORDERS
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import Tracked


def tracked(number: int, arrival: float, priority: int = 0) -> Tracked:
    table = BlockTable(BlockPool(2), 4)
    return Tracked(f"r{number}", number, 5, 5, priority, arrival, table, total=5)


@pytest.mark.parametrize("name", entries("order"))
def test_ranks_are_total_and_the_victim_is_one_of_the_candidates(name: str) -> None:
    order = ORDERS.get(name)()
    requests = [tracked(number, arrival=float(number // 3), priority=number % 2) for number in range(12)]
    ranks = [order.rank(request, 10.0) for request in requests]
    assert len(set(ranks)) == len(ranks)
    assert ranks == [order.rank(request, 10.0) for request in requests]
    ordered = sorted(requests, key=lambda request: order.rank(request, 10.0))
    for count in range(1, len(ordered) + 1):
        assert order.victim(ordered[:count]) in range(count)


@pytest.mark.parametrize("name", entries("order"))
def test_everything_finishes_under_oversubscription(name: str) -> None:
    pool = BlockPool(11)
    limits = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=9)
    scheduler = Scheduler(limits, ORDERS.get(name)(), pool, 4, 40)
    left = {f"r{number}": 12 for number in range(30)}
    for number, request_id in enumerate(left):
        scheduler.add(request_id, 8 + number % 5, 12, priority=number % 3, arrival=float(number // 4))
    steps = 0
    while (plan := scheduler.plan(float(steps))) is not None:
        steps += 1
        generated, finished = {}, set()
        for row in plan.rows:
            if row.sample:
                request_id = scheduler.request_at(row.row)
                assert request_id is not None
                generated[row.row] = 1
                left[request_id] -= 1
                if not left[request_id]:
                    finished.add(row.row)
        scheduler.commit(plan, generated, finished)
        scheduler.check()
        assert steps < 5000
    assert not any(left.values()) and scheduler.preemptions > 0
    assert pool.free == pool.total


def test_first_come_is_served_first() -> None:
    order = ORDERS.get("fcfs")()
    early, late, later = tracked(5, 1.0), tracked(1, 2.0), tracked(2, 2.0)
    assert sorted((later, late, early), key=lambda request: order.rank(request, 0.0)) == [early, late, later]
    assert order.victim([early, late, later]) == 2
