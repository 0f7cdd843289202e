"""Scheduler: budget, chunks, preemption, refusal; and a state machine of random traffic with aborts."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pelton.core.config import ScheduleSection
from pelton.core.errors import CapacityError, RequestError
from pelton.core.plan import StepPlan
from pelton.kv.pool import BlockPool
from pelton.schedule.orders.fcfs import FirstComeFirstServed
from pelton.schedule.scheduler import Scheduler

BLOCK = 4


def make(rows: int = 4, budget: int = 16, blocks: int = 100, max_len: int = 1000, cap: int = 0) -> Scheduler:
    limits = ScheduleSection(max_num_seqs=rows, max_num_batched_tokens=budget, long_prefill_token_threshold=cap)
    return Scheduler(limits, FirstComeFirstServed(), BlockPool(blocks + 1), BLOCK, max_len)


def advance(scheduler: Scheduler, finished: tuple[str, ...] = ()) -> StepPlan:
    """One step in which every sampling row gets a token."""
    plan = scheduler.plan()
    assert plan is not None
    over = {row.row for row in plan.rows if scheduler.request_at(row.row) in finished}
    scheduler.commit(plan, {row.row: 1 for row in plan.rows if row.sample}, over)
    scheduler.check()
    return plan


def widths(plan: StepPlan) -> list[tuple[int, int, bool]]:
    return [(row.start, row.count, row.sample) for row in plan.rows]


def test_prompts_are_chunked_by_the_budget_and_decodes_keep_their_share() -> None:
    scheduler = make(budget=10)
    scheduler.add("a", 4, 9)
    scheduler.add("b", 25, 9)
    assert widths(advance(scheduler)) == [(0, 4, True), (0, 6, False)]
    assert widths(advance(scheduler)) == [(4, 1, True), (6, 9, False)]
    assert widths(advance(scheduler)) == [(5, 1, True), (15, 9, False)]
    assert widths(advance(scheduler)) == [(6, 1, True), (24, 1, True)]
    assert widths(advance(scheduler)) == [(7, 1, True), (25, 1, True)]


def test_a_long_prompt_ahead_does_not_hold_up_decodes() -> None:
    """The long prompt is ranked first and still leaves each decode its token."""
    scheduler = make(budget=10, cap=8)
    scheduler.add("long", 50, 9)
    scheduler.add("short", 2, 9)
    assert widths(advance(scheduler)) == [(0, 8, False), (0, 2, True)]
    for step in range(1, 6):
        assert widths(advance(scheduler)) == [(8 * step, 8, False), (1 + step, 1, True)]
    scheduler = make(budget=3)
    scheduler.add("long", 50, 9, arrival=1.0)
    advance(scheduler)
    scheduler.finish("long")
    for name in ("x", "y"):
        scheduler.add(name, 1, 9, arrival=2.0)
    advance(scheduler)
    scheduler.add("older", 50, 9, arrival=0.0)
    advance(scheduler)
    assert widths(advance(scheduler))[0][1] == 1, "the first in rank takes what two decodes leave"


def test_no_more_requests_run_than_the_budget_has_tokens() -> None:
    scheduler = make(rows=8, budget=3)
    for name in "vwxyz":
        scheduler.add(name, 1, 9, arrival=2.0)
    advance(scheduler)
    scheduler.add("older", 20, 9, arrival=0.0)
    advance(scheduler)
    assert scheduler.num_running == 3
    scheduler.finish("v")
    assert widths(advance(scheduler)) == [(2, 1, True), (2, 1, True), (0, 1, False)]
    for step in range(1, 10):
        plan = advance(scheduler)
        assert widths(plan)[0] == (step, 1, False), "the first in rank computes in every step"
        assert len(plan.rows) == scheduler.num_running == 3


def test_rows_are_for_life_and_reused_only_after_release() -> None:
    scheduler = make(rows=2)
    for name in "abc":
        scheduler.add(name, 3, 9)
    plan = advance(scheduler)
    rows = {admission.request_id: admission.row for admission in plan.admitted}
    assert rows.keys() == {"a", "b"} and plan.released == ()
    assert {row.row for row in advance(scheduler, finished=("a",)).rows} == set(rows.values())
    plan = advance(scheduler)
    assert plan.released == (rows["a"],)
    assert [(one.request_id, one.row) for one in plan.admitted] == [("c", rows["a"])]
    assert scheduler.request_at(rows["b"]) == "b"


def test_blocks_are_taken_on_demand() -> None:
    scheduler = make(budget=6, blocks=10)
    scheduler.add("a", 7, 9)
    assert scheduler.kv_usage == 0.0
    assert [len(blocks) for (blocks,) in advance(scheduler).new_blocks.values()] == [2]
    assert advance(scheduler).new_blocks == {}
    assert advance(scheduler).new_blocks == {}
    assert scheduler.kv_usage == 0.2
    assert [len(blocks) for (blocks,) in advance(scheduler).new_blocks.values()] == [1]


def test_the_latest_gives_way_and_comes_back_first() -> None:
    scheduler = make(rows=2, budget=100, blocks=2, max_len=16)
    for name in "abc":
        scheduler.add(name, 4, 12)
    admitted = [one.request_id for _ in range(2) for one in advance(scheduler).admitted]
    assert admitted == ["a"], "each running request keeps a block in reserve"
    scheduler = make(rows=2, budget=100, blocks=5, max_len=16)
    for name in "abc":
        scheduler.add(name, 4, 12)
    seen = []
    for _ in range(12):
        advance(scheduler)
        seen += scheduler.preempted
    assert seen[:1] == ["b"] and "a" not in seen and scheduler.preemptions == len(seen)
    scheduler.finish("a")
    plan = scheduler.plan()
    assert plan is not None and [one.request_id for one in plan.admitted][:1] == ["b"]
    back = next(row for row in plan.rows if scheduler.request_at(row.row) == "b")
    assert back.start == 0 and back.count > 4 and back.sample, "prompt and drawn tokens are computed again"


def test_what_was_taken_away_is_not_given_to_another_in_the_same_step() -> None:
    scheduler = make(rows=2, budget=100, blocks=6, max_len=24)
    scheduler.add("a", 4, 20, arrival=0.0)
    scheduler.add("b", 12, 12, arrival=2.0)
    advance(scheduler)
    scheduler.add("c", 1, 9, arrival=1.0)
    while not scheduler.preempted:
        plan = advance(scheduler)
    assert scheduler.preempted == ("b",) and plan.admitted == ()
    assert [one.request_id for one in advance(scheduler).admitted] == ["c"]


@pytest.mark.parametrize(("prompt", "kind", "words"), [
    (0, RequestError, "empty prompt"),
    (50, RequestError, "has 50 tokens, and the model takes 50 .* at most 49"),
    (40, CapacityError, "has 40 tokens, and the KV cache holds 40 .*10 blocks of 4.* at most 39"),
])  # fmt: skip
def test_what_can_never_run_is_refused_with_the_numbers(prompt: int, kind: type[Exception], words: str) -> None:
    scheduler = make(blocks=10, max_len=50)
    with pytest.raises(kind, match=words):
        scheduler.add("a", prompt, 5)
    scheduler.check()
    assert scheduler.num_waiting == 0 and scheduler.plan() is None
    scheduler.add("a", 39, 1)
    with pytest.raises(RequestError, match="in use"):
        scheduler.add("a", 3, 5)


def test_finish_frees_at_once_in_each_state() -> None:
    pool = BlockPool(21)
    scheduler = Scheduler(
        ScheduleSection(max_num_seqs=2, max_num_batched_tokens=8), FirstComeFirstServed(), pool, BLOCK, 80
    )
    for name in ("decoding", "prefilling", "waiting"):
        scheduler.add(name, 3 if name == "decoding" else 30, 9)
    advance(scheduler)
    plan = scheduler.plan()
    assert plan is not None
    for name in ("waiting", "prefilling", "decoding"):
        used = pool.used
        scheduler.finish(name)
        assert pool.used < used or name == "waiting"
    assert pool.free == pool.total
    scheduler.commit(plan, {row.row: 1 for row in plan.rows if row.sample}, set())
    scheduler.check()
    assert scheduler.plan() is None
    with pytest.raises(KeyError):
        scheduler.finish("waiting")


class SchedulerMachine(RuleBasedStateMachine):
    """Random traffic on a small pool; effects are counted, so that a machine in which nothing happens fails."""

    seen: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make(rows=3, budget=7, blocks=8, max_len=30, cap=5)
        self.left: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.tables: dict[int, int] = {}
        self.number = 0

    @rule(prompt=st.integers(1, 24), answer=st.integers(1, 12))
    def add(self, prompt: int, answer: int) -> None:
        self.number += 1
        name = f"r{self.number}"
        self.scheduler.add(name, prompt, answer, arrival=float(self.number // 2))
        self.left[name] = min(answer, self.scheduler.max_len - prompt)
        self.known[name], self.computed[name] = prompt, 0

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.left)))
        self.seen["abort"] += 1
        self.seen["abort while running"] += self.computed[name] > 0
        self.scheduler.finish(name)
        self.forget(name)

    @rule(abort_during=st.booleans())
    def step(self, abort_during: bool) -> None:
        plan = self.scheduler.plan(float(self.number))
        if plan is None:
            assert not self.left
            return
        self.read_plan(plan)
        generated, finished = {}, set()
        for row in plan.rows:
            name = self.scheduler.request_at(row.row)
            assert name is not None and row.start == self.computed[name]
            assert row.sample == (row.start + row.count == self.known[name]), "drawn after the last known token"
            assert row.start + row.count <= self.tables[row.row] * BLOCK, "each token has a place"
            self.computed[name] += row.count
            if row.sample:
                generated[row.row] = 1
                self.known[name] += 1
                self.left[name] -= 1
                if not self.left[name]:
                    finished.add(row.row)
        names = {row.row: self.scheduler.request_at(row.row) for row in plan.rows}
        if abort_during:
            gone = names[plan.rows[0].row]
            assert gone is not None
            self.scheduler.finish(gone)
            self.forget(gone)
            self.seen["abort during a step"] += 1
        self.scheduler.commit(plan, generated, finished)
        for row_number in finished:
            name = names[row_number]
            if name in self.left:
                self.forget(name)
                self.seen["finish"] += 1

    def read_plan(self, plan: StepPlan) -> None:
        assert 0 < plan.num_tokens <= 7 and all(row.count <= 5 for row in plan.rows)
        assert len({row.row for row in plan.rows}) == len(plan.rows) <= 3
        for name in self.scheduler.preempted:
            self.computed[name] = 0
            self.seen["preempt"] += 1
        for row in plan.released:
            self.tables.pop(row, None)
        for admission in plan.admitted:
            assert admission.row not in self.tables, "a row is released before it is taken"
            self.tables[admission.row] = 0
        for row, (blocks,) in plan.new_blocks.items():
            self.tables[row] += len(blocks)
        assert not (self.scheduler.preempted and plan.admitted), "what was taken away is not given to another at once"
        self.seen["chunk"] += sum(not row.sample for row in plan.rows)
        first = min(self.left, key=lambda name: (int(name[1:]) // 2, int(name[1:])))
        running = {self.scheduler.request_at(row.row) for row in plan.rows}
        if self.computed[first]:
            assert first in running, "the first in rank computes in every step"

    def forget(self, name: str) -> None:
        del self.left[name], self.known[name], self.computed[name]

    @invariant()
    def adds_up(self) -> None:
        self.scheduler.check()
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.left)

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.left:
                break
            self.step(abort_during=False)
        assert not self.left, "all requests end"
        self.scheduler.check()


def test_any_traffic_adds_up_and_ends() -> None:
    SchedulerMachine.seen.clear()
    machine = SchedulerMachine.TestCase
    machine.settings = settings(max_examples=60, stateful_step_count=40)
    machine().runTest()
    events = ("abort", "abort while running", "abort during a step", "finish", "preempt", "chunk")
    assert min(SchedulerMachine.seen[event] for event in events) > 10, SchedulerMachine.seen


def test_counting_loads_no_array_library() -> None:
    code = "import sys, pelton.schedule.scheduler; sys.exit(not {'numpy', 'torch'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
