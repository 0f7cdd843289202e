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
from pelton.schedule.orders import lpm, sjf
from pelton.schedule.orders.priority import AGEING_SECONDS
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
LONGEST = 12  # of the prompts
ALONE = 1 + ANSWER  # steps of one request by itself: its prompt is less than a step
MOST_LOST = 4  # times that a request loses its blocks
HEAD_STARTS = {"fcfs": 0.0, "sjf": sjf.MOST_SECONDS, "lpm": lpm.MOST_SECONDS}  # seconds, as docs/serve.md has them


@dataclass
class Crowd:
    """Ten times more requests than the pool holds, with mixed priorities: half of them at once, then one a second; a
    step takes a second. `slots`: host slots, for as many blocks.
    """

    name: str
    slots: int = 0
    asked: dict[str, NewRequest] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        limits = ScheduleSection(max_num_seqs=8, max_num_batched_tokens=16, max_steps_per_call=1)
        whole = -(-(LONGEST + ANSWER) // BLOCK)
        groups = (KVGroup(BlockPool(REQUESTS * whole // 10 + 1), None, self.slots),)
        cache = CacheSection(preemption_mode="swap")
        self.scheduler = Scheduler(limits, cache, ORDERS.get(self.name)(), groups, BLOCK, 40)

    def add(self, number: int, now: float) -> None:
        name = f"r{number}"
        prompt = LONGEST - number % 5
        self.asked[name] = NewRequest(name, prompt, ANSWER, number % 3, now, owner=f"o{number % 4}")
        self.scheduler.add(self.asked[name])

    def run(self) -> None:
        left = Counter({f"r{number}": ANSWER for number in range(REQUESTS)})
        now, later = 0.0, list(range(REQUESTS // 2, REQUESTS))
        for number in range(REQUESTS // 2):
            self.add(number, now)
        while self.scheduler.num_waiting + self.scheduler.num_running or later:
            if later:
                self.add(later.pop(0), now)
            plan = self.scheduler.plan(now)
            assert plan is not None
            self.lost.update(self.scheduler.preempted)
            first = self.scheduler._places.running[0]
            assert first.row in {row.row for row in plan.rows}, "the first in rank gets on in every step"
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

    def may_go_before(self, one: str, other: str) -> bool:
        """Whether the order may let `one` begin while `other` waits, as docs/serve.md says."""
        late = self.asked[one].arrival - self.asked[other].arrival
        if self.name == "priority":
            return late <= (self.asked[other].priority - self.asked[one].priority) * AGEING_SECONDS
        return self.name == "fair" or late <= HEAD_STARTS[self.name]


@pytest.mark.parametrize("slots", [0, 40])
@pytest.mark.parametrize("name", ["fcfs", "priority", "sjf", "lpm", "fair"])
def test_ten_times_more_than_fits(name: str, slots: int) -> None:
    """All end. Blocks are lost less than once for each request, and by nobody more than a few times. Nobody is
    overtaken beyond the order's bound; and as the first in rank gets a token in every step, nobody waits longer than
    all who may go before it take one after the other.
    """
    crowd = Crowd(name, slots)
    crowd.run()
    assert len(crowd.ended) == REQUESTS and crowd.scheduler.stats().host_slots_used == 0
    assert crowd.lost.total() == crowd.scheduler.stats().preemptions_total
    assert 0 < crowd.lost.total() <= REQUESTS and max(crowd.lost.values()) <= MOST_LOST
    assert (crowd.scheduler.stats().swaps_total > 0) == (slots > 0)
    overtaken = 0
    for one, asked in crowd.asked.items():
        before = {
            other
            for other, began in crowd.begun.items()
            if began < crowd.begun[one] and crowd.ended[other] >= asked.arrival
        }
        overtaken += any(crowd.asked[other].arrival > asked.arrival for other in before)
        assert all(crowd.may_go_before(other, one) for other in before), f"{one} is overtaken by some of {before}"
        assert crowd.begun[one] - asked.arrival <= len(before) * ALONE
    assert (overtaken > 0) == (name in ("priority", "fair")), f"{overtaken} overtaken"


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
