"""Orders: who is tried first, how long anybody can be overtaken, and how equal the shares of owners are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.plan import StepPlan
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.schedule import ORDERS
from pelton.schedule.order import Order
from pelton.schedule.orders import lpm, sjf
from pelton.schedule.orders.fair import ANSWER_TOKEN, MOST_OWNERS, FairShares
from pelton.schedule.orders.lpm import LongestPrefixMatch
from pelton.schedule.orders.sjf import ShortestJobFirst
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest

LONGEST, ANSWER, ROWS = 40, 4, 2


@dataclass
class Clocked:
    """A scheduler whose steps take a second each; `begun`: (request, second), `served`: of each owner what it got."""

    order: Order
    rows: int = ROWS
    budget: int = 16
    blocks: int = 400
    now: float = 0.0
    begun: list[tuple[str, float]] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    requests: dict[str, NewRequest] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = ScheduleSection(max_num_seqs=self.rows, max_num_batched_tokens=self.budget, max_steps_per_call=1)
        pools = (KVGroup(BlockPool(self.blocks + 1)),)
        self.scheduler = Scheduler(limits, CacheSection(), self.order, pools, BLOCK, 200)

    def add(self, name: str, prompt: int, answer: int = ANSWER, **kind: object) -> None:
        request = NewRequest(name, prompt, answer, arrival=self.now, **kind)  # type: ignore[arg-type]
        self.scheduler.add(request)
        self.requests[name], self.left[name] = request, answer

    @property
    def waiting(self) -> list[NewRequest]:
        return [request.asked for request in self.scheduler._places.waiting]

    def step(self) -> StepPlan | None:
        before = self.waiting
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.begun += [(one.request_id, self.now) for one in plan.admitted]
            self._none_overtaken(before, [one.request_id for one in plan.admitted])
            generated, finished = {}, set()
            for row in plan.rows:
                name = self.scheduler.request_at(row.row)
                assert name is not None
                request = self.requests[name]
                answer = max(0, row.start + row.count - request.prompt)
                self.served[request.owner] += row.count + (ANSWER_TOKEN - 1) * min(answer, row.count)
                if row.sample:
                    generated[row.row] = 1
                    self.left[name] -= 1
                    if not self.left[name]:
                        finished.add(row.row)
            self.scheduler.commit(plan, generated, finished)
            self.scheduler.check()
        self.now += 1
        return plan

    def _none_overtaken(self, before: Sequence[NewRequest], admitted: Sequence[str]) -> None:
        """Nobody begins while another waits that came longer before it than the order says."""
        bound = {ShortestJobFirst: sjf.MOST_SECONDS, LongestPrefixMatch: lpm.MOST_SECONDS}.get(type(self.order))
        if bound is None or not admitted:
            return
        last = max(self.requests[name].arrival for name in admitted)
        left = [one for one in before if one.request_id not in admitted and one.arrival < last - bound]
        assert not left, f"{admitted} overtake {left}"


ARRIVALS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, LONGEST), st.integers(0, 2)), min_size=20, max_size=60)


@pytest.mark.parametrize("name", ["sjf", "lpm", "fcfs", "fair", "priority"])
@settings(max_examples=40)
@given(arrivals=ARRIVALS)
def test_nobody_is_overtaken_beyond_the_bound_and_all_end(name: str, arrivals: list[tuple[int, int, int]]) -> None:
    clocked = Clocked(ORDERS.get(name)())
    for number, (gap, prompt, owner) in enumerate(arrivals):
        for _ in range(gap):
            clocked.step()
        clocked.add(f"r{number}", prompt, owner=f"owner {owner}")
    while clocked.step() is not None:
        assert clocked.now < 5000
    assert not any(clocked.left.values())


def test_the_bound_is_reached() -> None:
    """A stream of short ones overtakes a long one for MOST_SECONDS, and not for longer."""
    clocked = Clocked(ShortestJobFirst(), rows=1, budget=4000, blocks=2000)
    clocked.scheduler.max_len = 4000
    clocked.scheduler._max_model_len = 4000
    long = int(2 * sjf.MOST_SECONDS / sjf.SECONDS_A_TOKEN)
    for _ in range(60):
        clocked.add(f"short {clocked.now}", 1, 1)
        if clocked.now == 1:
            clocked.add("long", min(long, 3999), 1)
        clocked.step()
    began = dict(clocked.begun)["long"]
    assert 1 + sjf.MOST_SECONDS - 1 <= began <= 1 + sjf.MOST_SECONDS + 2


def test_the_shortest_goes_first() -> None:
    clocked = Clocked(ShortestJobFirst(), rows=1)
    clocked.add("running", 3)
    clocked.step()
    for name, prompt in (("long", 40), ("middle", 20), ("short", 10)):
        clocked.add(name, prompt)
    while clocked.step() is not None:
        pass
    assert [name for name, _ in clocked.begun] == ["running", "short", "middle", "long"]


def test_what_is_cached_is_not_to_be_computed() -> None:
    """Of two prompts the longer one, of which most is there, goes first in both orders."""
    for order, ahead in ((ShortestJobFirst(), True), (LongestPrefixMatch(), True), (ORDERS.get("fcfs")(), False)):
        traffic = Traffic(make(rows=1, order=order))
        traffic.add("first", range(40), 2)
        traffic.run()
        traffic.add("running", [7] * 3, 5)
        traffic.step()
        traffic.add("unknown", [8] * 30, 2)
        traffic.add("known", [*range(38), 9], 2)
        traffic.run()
        begun = [name for name in traffic.over if name in ("known", "unknown")]
        assert (begun[0] == "known") == ahead, order


def test_what_several_begin_with_is_computed_once() -> None:
    traffic = Traffic(make(rows=8, budget=64, order=LongestPrefixMatch()))
    for number in range(4):
        traffic.add(f"r{number}", [*range(30), number], 2)
    plan = traffic.step()
    assert plan is not None and plan.num_tokens == 31 + 3 * 3
    traffic.run()
    assert traffic.scheduler.stats().prefix_hits_total >= 3 * 28


def test_other_answers_of_a_prompt_follow_it() -> None:
    """They have no more than a token to compute, so they go before whatever is longer."""
    traffic = Traffic(make(rows=1, order=ShortestJobFirst()))
    traffic.add("parent", range(20), 6)
    traffic.add("child", range(20), 6, parent="parent")
    traffic.add("other", [5] * 4, 6)
    traffic.run()
    assert list(traffic.over) == ["other", "parent", "child"], "until then the prompt is still to be computed"
    traffic = Traffic(make(rows=1, order=ShortestJobFirst()))
    traffic.add("parent", range(20), 6)
    traffic.step()
    traffic.add("other", [5] * 4, 6)
    traffic.add("child", range(20), 6, parent="parent")
    traffic.run()
    assert list(traffic.over) == ["parent", "child", "other"]


# ---- fair shares -----------------------------------------------------------------------------------------------------

MOST_AT_ONCE = ROWS * (LONGEST + ANSWER_TOKEN * ANSWER)
BOUND = 2 * max(LONGEST, MOST_AT_ONCE)  # as the paper proves it, with what two rows can hold


def backlog(owners: dict[str, Sequence[int]], weights: dict[str, float] | None = None) -> Clocked:
    """Requests of prompts of these lengths, all there at once, owner after owner."""
    order = FairShares()
    order.weigh(weights or {})
    clocked = Clocked(order)
    for owner, prompts in owners.items():
        for number, prompt in enumerate(prompts):
            clocked.add(f"{owner}{number}", prompt, owner=owner)
    return clocked


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(1, LONGEST), min_size=10, max_size=40), min_size=2, max_size=4))
def test_owners_that_wait_are_served_alike(prompts: list[list[int]]) -> None:
    clocked = backlog({f"o{number}": listed for number, listed in enumerate(prompts)})
    while True:
        waiting = {request.owner for request in clocked.waiting}
        if len(waiting) < len(prompts):
            return
        shares = [clocked.served[owner] for owner in waiting]
        assert max(shares) - min(shares) <= BOUND, clocked.served
        clocked.step()


def test_a_flood_does_not_hold_up_another_owner() -> None:
    clocked = backlog({"flood": [20] * 200})
    for _ in range(20):
        clocked.step()
    clocked.add("one", 20, owner="one")
    came = clocked.now
    while "one" not in dict(clocked.begun):
        clocked.step()
    assert dict(clocked.begun)["one"] - came <= 20, "after the two that run, not after two hundred"


def test_nobody_saves_up() -> None:
    """An owner that was away begins level with the others, not ahead by all they got meanwhile."""
    clocked = backlog({"steady": [20] * 100, "away": [20]})
    for _ in range(100):
        clocked.step()
    for number in range(100):
        clocked.add(f"back{number}", 20, owner="away")
    before = Counter(clocked.served)
    for _ in range(100):
        clocked.step()
    got = clocked.served - before
    assert got["away"] - got["steady"] <= BOUND, got
    assert got["steady"] > 0.3 * got["away"]


@pytest.mark.parametrize("weight", [2.0, 4.0])
def test_a_weight_is_how_many_times_the_share(weight: float) -> None:
    clocked = backlog({"heavy": [20] * 400, "light": [20] * 400}, {"heavy": weight})
    for _ in range(600):
        clocked.step()
    assert clocked.waiting and 0.8 * weight < clocked.served["heavy"] / clocked.served["light"] < 1.25 * weight


def test_owners_are_forgotten_in_the_end() -> None:
    order = FairShares()
    clocked = Clocked(order, rows=1)
    for number in range(3):
        clocked.add(f"r{number}", 20, owner="steady")
    for number in range(2 * MOST_OWNERS):
        order._charge(f"passer-by {number}", 0.5)
    while clocked.step() is not None:
        pass
    clocked.add("late", 5, owner="steady")
    clocked.step()
    assert len(order._counters) <= MOST_OWNERS + 1
