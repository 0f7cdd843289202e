"""Gate: admission after a preemption, and what ten times more requests than fit come to."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection, ScheduleSection
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.schedule import ORDERS
from pelton.schedule.gate import LEAST_RESERVE, MOST_RESERVE, Gate
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest


def gate_of(scheduler: Scheduler) -> Gate:
    return scheduler._planner.gate


def test_the_reserve_doubles_and_halves_within_bounds() -> None:
    traffic = Traffic(make(rows=4, budget=64, blocks=12, max_len=48))
    for number in range(4):
        traffic.add(f"r{number}", [number] * 9, 30)
    gate, seen = gate_of(traffic.scheduler), []
    while traffic.open:
        before, running = gate.reserve, traffic.scheduler.num_running
        over = len(traffic.over)
        traffic.step()
        wanted = before
        if traffic.scheduler.preempted:
            wanted = min(2 * before, MOST_RESERVE)
            assert traffic.scheduler.num_running < running
        for _ in range(len(traffic.over) - over):
            wanted = max(wanted // 2, LEAST_RESERVE)
        assert gate.reserve == wanted
        seen.append(gate.reserve)
    assert max(seen) > LEAST_RESERVE and all(LEAST_RESERVE <= reserve <= MOST_RESERVE for reserve in seen)


def test_after_a_preemption_nobody_begins_before_there_is_room_for_what_runs() -> None:
    scheduler = make(rows=4, budget=100, blocks=12, max_len=48)
    for number in range(2):
        scheduler.add(NewRequest(f"r{number}", 8, 40))
    gate = gate_of(scheduler)
    preempted = 0
    for _ in range(60):
        plan = scheduler.plan()
        assert plan is not None
        if plan.admitted and scheduler.num_running > 1:
            held = sum(request.table.num_blocks for request in scheduler._places.running)
            assert 12 - held >= gate.reserve * (scheduler.num_running - 1) or not preempted
        preempted += len(scheduler.preempted)
        scheduler.commit(plan, {row.row: 1 for row in plan.rows if row.sample}, set())
        scheduler.check()
        if preempted and scheduler.request_at(plan.rows[0].row) == "r0":
            assert scheduler.num_running == 1, "what is left does not suffice for two of them"
        if scheduler._requests["r0"].total >= 46:
            break
    assert preempted == 1, "once, and not again and again"
    scheduler.finish("r0")
    plan = scheduler.plan()
    assert plan is not None and [one.request_id for one in plan.admitted] == ["r1"], "who is alone may begin"


def test_who_is_alone_is_never_kept_out() -> None:
    scheduler = make(rows=4, budget=100, blocks=3, max_len=12)
    gate_of(scheduler).reserve = MOST_RESERVE
    scheduler.add(NewRequest("a", 9, 2))
    plan = scheduler.plan()
    assert plan is not None and len(plan.admitted) == 1


# ---- oversubscription ------------------------------------------------------------------------------------------------

REQUESTS, ANSWER = 60, 12


@dataclass
class Crowd:
    """Ten times more requests than the pool holds, with mixed priorities, one a second; a step takes a second."""

    name: str
    added: dict[str, float] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = ScheduleSection(max_num_seqs=8, max_num_batched_tokens=16, max_steps_per_call=1)
        blocks = REQUESTS * 6 // 10
        self.scheduler = Scheduler(
            limits, CacheSection(), ORDERS.get(self.name)(), (KVGroup(BlockPool(blocks + 1)),), BLOCK, 40
        )
        self.ahead: dict[str, int] = {}

    def add(self, number: int, now: float) -> None:
        name = f"r{number}"
        self.scheduler.add(NewRequest(name, 8 + number % 5, ANSWER, number % 3, now, owner=f"o{number % 4}"))
        self.added[name] = now

    def run(self) -> None:
        left = Counter({f"r{number}": ANSWER for number in range(REQUESTS)})
        now = 0.0
        for number in range(REQUESTS):
            self.add(number, 0.0 if number < REQUESTS // 2 else float(number))
        while (plan := self.scheduler.plan(now)) is not None:
            for one in plan.admitted:
                self.begun.setdefault(one.request_id, now)
            generated, finished = {}, set()
            for row in plan.rows:
                if row.sample:
                    name = self.scheduler.request_at(row.row)
                    assert name is not None
                    generated[row.row] = 1
                    left[name] -= 1
                    if not left[name]:
                        finished.add(row.row)
                        self.ended[name] = now
            self.scheduler.commit(plan, generated, finished)
            self.scheduler.check()
            now += 1


@pytest.mark.parametrize("name", ["fcfs", "priority", "sjf", "lpm", "fair"])
def test_ten_times_more_than_fits(name: str) -> None:
    """All end. Blocks are lost less than once for each request. The first in rank gets a token in every step, so that
    nobody waits longer than all that may be tried before it takes one after the other: here all of them.
    """
    crowd = Crowd(name)
    crowd.run()
    assert len(crowd.ended) == REQUESTS
    assert 0 < crowd.scheduler.stats().preemptions_total <= REQUESTS
    alone = -(-12 // 16) + ANSWER  # steps of one request by itself
    assert max(crowd.begun[one] - crowd.added[one] for one in crowd.added) <= REQUESTS * alone


def test_the_more_urgent_wait_less() -> None:
    crowd = Crowd("priority")
    crowd.run()
    waits = [
        [crowd.begun[f"r{number}"] for number in range(REQUESTS // 2) if number % 3 == level] for level in range(3)
    ]
    means = [sum(wait) / len(wait) for wait in waits]
    assert means == sorted(means) and max(waits[0]) < max(waits[2])


# ---- long prompts ----------------------------------------------------------------------------------------------------


def counts(target: int | None, *prompts: int) -> list[list[int]]:
    """Tokens of each request in the first steps, the last prompt being added after the first step."""
    limits = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=16, itl_target_ms=target)
    scheduler = Scheduler(limits, CacheSection(), ORDERS.get("fcfs")(), (KVGroup(BlockPool(200)),), BLOCK, 400)
    for number, prompt in enumerate(prompts[:-1]):
        scheduler.add(NewRequest(f"r{number}", prompt, 5))
    steps = []
    for _ in range(3):
        plan = scheduler.plan()
        assert plan is not None
        steps.append([row.count for row in plan.rows])
        scheduler.commit(plan, {row.row: 1 for row in plan.rows if row.sample}, set())
        if len(steps) == 1:
            scheduler.add(NewRequest("last", prompts[-1], 5))
    return steps


@pytest.mark.parametrize(("target", "prompts", "found"), [
    (100, (100, 6), [[16], [8, 6], [15, 1]]),
    (None, (100, 6), [[16], [16], [16]]),
    (100, (100, 60), [[16], [16], [16]]),
    (100, (20, 6), [[16], [4, 6], [1, 1]]),
    (100, (100, 12), [[16], [16], [16]]),
])  # fmt: skip
def test_a_long_prompt_leaves_room_for_a_short_one_and_for_no_other(
    target: int | None, prompts: tuple[int, ...], found: list[list[int]]
) -> None:
    assert counts(target, *prompts) == found
