"""Every order: ranks are total and stable, victims lie in range, and a scheduler that uses it finishes everything."""

from math import isfinite

import pytest
from registry_entries import entries

from pelton.core.config import CacheSection, ScheduleSection
from pelton.kv.blocks import Blocks
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.kv.table import BlockTable
from pelton.schedule import ORDERS
from pelton.schedule.order import QueueView
from pelton.schedule.orders.priority import AGEING_SECONDS
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest, Tracked


def tracked(number: int, arrival: float, priority: int = 0, name: str = "fcfs") -> Tracked:
    table = BlockTable(Blocks((KVGroup(BlockPool(2)),), 4, CacheSection()))
    asked = NewRequest(f"r{number}", 5, 5, priority, arrival)
    return Tracked(asked, number, ORDERS.get(name)().rank(asked, number), table, total=5)


@pytest.mark.parametrize("name", entries("order"))
def test_ranks_are_total_and_the_victim_is_one_of_the_candidates(name: str) -> None:
    requests = [tracked(number, float(number // 3), number % 2, name) for number in range(12)]
    requests += [tracked(12 + number, 0.0, (-1) ** number * 10**400, name) for number in range(4)]
    ranks = [request.rank for request in requests]
    assert len(set(ranks)) == len(ranks)
    assert all(isfinite(value) for rank in ranks for value in rank)
    ordered = sorted(requests, key=lambda request: request.rank)
    for count in range(1, len(ordered) + 1):
        assert ORDERS.get(name)().victim(ordered[:count]) in range(count)


@pytest.mark.parametrize("name", entries("order"))
def test_a_victim_is_never_the_first_of_several(name: str) -> None:
    """So that the first always progresses."""
    requests = [tracked(number, float(number), -number, name) for number in range(6)]
    ordered = sorted(requests, key=lambda request: request.rank)
    assert all(ORDERS.get(name)().victim(ordered[:count]) > 0 for count in range(2, 7))


@pytest.mark.parametrize("name", entries("order"))
def test_everything_finishes_under_oversubscription(name: str) -> None:
    pool = BlockPool(11)
    limits = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=9)
    scheduler = Scheduler(limits, CacheSection(), ORDERS.get(name)(), (KVGroup(pool),), 4, 40)
    left = {f"r{number}": 12 for number in range(30)}
    for number, request_id in enumerate(left):
        scheduler.add(NewRequest(request_id, 8 + number % 5, 12, number % 3, float(number // 4)))
    steps = 0
    while (plan := scheduler.plan()) is not None:
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
    assert not any(left.values()) and 0 < scheduler.stats().preemptions_total < steps
    assert pool.free == pool.total


@pytest.mark.parametrize("name", entries("order"))
def test_the_queue_has_all_that_wait_each_once(name: str) -> None:
    order = ORDERS.get(name)()
    requests = [tracked(number, float(number // 3), number % 2, name) for number in range(40)]
    waiting = sorted(requests, key=lambda request: request.rank)
    for now in (0.0, 5.0, 1000.0):
        queue = list(order.queue(waiting, QueueView(now, lambda request: request.number % 5)))
        assert sorted(queue, key=lambda request: request.rank) == waiting
    assert list(order.queue([], QueueView(0.0, lambda request: 0))) == []


@pytest.mark.parametrize("name", entries("order"))
def test_what_an_order_does_not_heed_changes_nothing(name: str) -> None:
    kind = ORDERS.get(name)

    def begun(priorities: tuple[int, ...], owners: tuple[str, ...]) -> list[str]:
        limits = ScheduleSection(max_num_seqs=1, max_num_batched_tokens=64)
        scheduler = Scheduler(limits, CacheSection(), kind(), (KVGroup(BlockPool(50)),), 4, 40)
        for number, (priority, owner) in enumerate(zip(priorities, owners, strict=True)):
            scheduler.add(NewRequest(f"r{number}", 6, 1, priority, 0.0, owner=owner))
        found = []
        while (plan := scheduler.plan()) is not None:
            found += [one.request_id for one in plan.admitted]
            scheduler.commit(plan, {row.row: 1 for row in plan.rows}, {row.row for row in plan.rows})
        return found

    usual = begun((0,) * 6, ("",) * 6)
    assert (begun((3, 2, 1, 0, 1, 0), ("",) * 6) == usual) == (not kind.heeds_priority)
    assert (begun((0,) * 6, ("a", "a", "a", "a", "b", "b")) == usual) == (not kind.heeds_owner)


def test_first_come_is_served_first() -> None:
    early, late, later = tracked(5, 1.0), tracked(1, 2.0), tracked(2, 2.0)
    assert sorted((later, late, early), key=lambda request: request.rank) == [early, late, later]
    assert ORDERS.get("fcfs")().victim([early, late, later]) == 2


def test_a_smaller_priority_value_goes_first_until_the_other_has_waited_long_enough() -> None:
    low = tracked(0, 100.0, 3, "priority")
    for arrival, ahead in ((100.0, True), (129.0, True), (131.0, False), (90.0, True)):
        assert (tracked(1, arrival, 0, "priority").rank < low.rank) == ahead, arrival
    assert tracked(1, 100.0, 3, "priority").rank > low.rank, "among equals the first to come"
    assert tracked(1, 99.0, 3, "priority").rank < low.rank


@pytest.mark.parametrize("level", [1, 3])
def test_a_stream_of_urgent_requests_delays_another_by_a_bound(level: int) -> None:
    """One step and one urgent request a second, which takes the only row for that step: no second is left over."""
    limits = ScheduleSection(max_num_seqs=1, max_num_batched_tokens=8)
    scheduler = Scheduler(limits, CacheSection(), ORDERS.get("priority")(), (KVGroup(BlockPool(50)),), 4, 40)
    started = None
    for second in range(200):
        scheduler.add(NewRequest(f"urgent{second}", 4, 1, 0, float(second)))
        if second == 5:
            scheduler.add(NewRequest("patient", 4, 1, level, float(second)))
        plan = scheduler.plan()
        assert plan is not None
        if any(one.request_id == "patient" for one in plan.admitted):
            started = second
        scheduler.commit(plan, {row.row: 1 for row in plan.rows}, {row.row for row in plan.rows})
    assert started is not None and 5 < started <= 5 + level * AGEING_SECONDS + 1
