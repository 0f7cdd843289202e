"""Scheduler: budget, chunks, preemption, refusal, figures."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.errors import CapacityError, RequestError
from pelton.core.plan import StepPlan
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.schedule.orders.fcfs import FirstComeFirstServed
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int, arrival: float = 0.0) -> None:
    scheduler.add(NewRequest(name, prompt, max_tokens, arrival=arrival))


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
    add(scheduler, "a", 4, 9)
    add(scheduler, "b", 25, 9)
    assert widths(advance(scheduler)) == [(0, 4, True), (0, 6, False)]
    assert widths(advance(scheduler)) == [(4, 1, True), (6, 9, False)]
    assert widths(advance(scheduler)) == [(5, 1, True), (15, 9, False)]
    assert widths(advance(scheduler)) == [(6, 1, True), (24, 1, True)]
    assert widths(advance(scheduler)) == [(7, 1, True), (25, 1, True)]


def test_a_long_prompt_ahead_does_not_hold_up_decodes() -> None:
    """The long prompt is ranked first and still leaves each decode its token."""
    scheduler = make(budget=10, cap=8)
    add(scheduler, "long", 50, 9)
    add(scheduler, "short", 2, 9)
    assert widths(advance(scheduler)) == [(0, 8, False), (0, 2, True)]
    for step in range(1, 6):
        assert widths(advance(scheduler)) == [(8 * step, 8, False), (1 + step, 1, True)]
    scheduler = make(budget=3)
    add(scheduler, "long", 50, 9, arrival=1.0)
    advance(scheduler)
    scheduler.finish("long")
    for name in ("x", "y"):
        add(scheduler, name, 1, 9, arrival=2.0)
    advance(scheduler)
    add(scheduler, "older", 50, 9, arrival=0.0)
    advance(scheduler)
    assert widths(advance(scheduler))[0][1] == 1, "the first in rank takes what two decodes leave"


@pytest.mark.parametrize("cost", [0.001, 0.02, 1.0])
def test_a_step_has_no_more_work_for_standing_in_a_long_prompt(cost: float) -> None:
    """Work is counted here token by token; a prompt always gets on, and a decode always has its token."""
    budget = 64
    scheduler = make(budget=budget, blocks=1000, max_len=1600)
    scheduler.limits = replace(scheduler.limits, context_cost=cost)
    add(scheduler, "short", 2, 900)
    advance(scheduler)
    add(scheduler, "long", 600, 9)
    pieces, end = [], 0
    while end < 600:
        plan = advance(scheduler)
        assert [row.count for row in plan.rows if row.row == 0] == [1], "the decode is in every step"
        (row,) = [row for row in plan.rows if row.row == 1]
        work = sum(1 + cost * index for index in range(row.start, row.start + row.count))
        assert row.count == 1 or work <= budget - 1 + 1e-9
        more = work + 1 + cost * (row.start + row.count)
        assert row.start + row.count == 600 or more > budget - 1, "as many as fit"
        pieces.append(row.count)
        end = row.start + row.count
    assert pieces[0] > pieces[-2] >= 1 and len(pieces) > 600 // (budget - 1)


def test_two_prompts_share_a_steps_work() -> None:
    scheduler = make(budget=64, blocks=1000, max_len=1600)
    scheduler.limits = replace(scheduler.limits, context_cost=0.05)
    add(scheduler, "a", 400, 9)
    add(scheduler, "b", 20, 9)
    for _ in range(40):
        plan = advance(scheduler)
        rows = [row for row in plan.rows if row.count > 1]
        work = sum(1 + 0.05 * index for row in rows for index in range(row.start, row.start + row.count))
        assert work <= 64 + 1e-9


def test_no_more_requests_run_than_the_budget_has_tokens() -> None:
    scheduler = make(rows=8, budget=3)
    for name in "vwxyz":
        add(scheduler, name, 1, 9, arrival=2.0)
    advance(scheduler)
    add(scheduler, "older", 20, 9, arrival=0.0)
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
        add(scheduler, name, 3, 9)
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
    add(scheduler, "a", 7, 9)
    assert scheduler.stats().kv_usage == 0.0
    assert [len(blocks) for (blocks,) in advance(scheduler).new_blocks.values()] == [2]
    assert advance(scheduler).new_blocks == {}
    assert advance(scheduler).new_blocks == {}
    assert scheduler.stats().kv_usage == 0.2
    assert [len(blocks) for (blocks,) in advance(scheduler).new_blocks.values()] == [1]


def test_the_latest_gives_way_and_comes_back_first() -> None:
    scheduler = make(rows=2, budget=100, blocks=2, max_len=16)
    for name in "abc":
        add(scheduler, name, 4, 12)
    admitted = [one.request_id for _ in range(2) for one in advance(scheduler).admitted]
    assert admitted == ["a"], "each running request keeps a block in reserve"
    scheduler = make(rows=2, budget=100, blocks=5, max_len=16)
    for name in "abc":
        add(scheduler, name, 4, 12)
    seen = []
    for _ in range(12):
        advance(scheduler)
        seen += scheduler.preempted
    assert seen[:1] == ["b"] and "a" not in seen and scheduler.stats().preemptions_total == len(seen)
    scheduler.finish("a")
    plan = scheduler.plan()
    assert plan is not None and [one.request_id for one in plan.admitted][:1] == ["b"]
    back = next(row for row in plan.rows if scheduler.request_at(row.row) == "b")
    assert back.start == 0 and back.count > 4 and back.sample, "prompt and drawn tokens are computed again"


def test_what_was_taken_away_is_not_given_to_another_in_the_same_step() -> None:
    scheduler = make(rows=2, budget=100, blocks=6, max_len=24)
    add(scheduler, "a", 4, 20, arrival=0.0)
    add(scheduler, "b", 12, 12, arrival=2.0)
    advance(scheduler)
    add(scheduler, "c", 1, 9, arrival=1.0)
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
        add(scheduler, "a", prompt, 5)
    scheduler.check()
    assert scheduler.num_waiting == 0 and scheduler.plan() is None
    add(scheduler, "a", 39, 1)
    with pytest.raises(RequestError, match="in use"):
        add(scheduler, "a", 3, 5)


def test_finish_frees_at_once_in_each_state() -> None:
    pool = BlockPool(21)
    scheduler = Scheduler(
        ScheduleSection(max_num_seqs=2, max_num_batched_tokens=8),
        CacheSection(),
        FirstComeFirstServed(),
        (KVGroup(pool),),
        BLOCK,
        80,
    )
    for name in ("decoding", "prefilling", "waiting"):
        add(scheduler, name, 3 if name == "decoding" else 30, 9)
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


@pytest.mark.parametrize(("prompt", "code"), [(0, None), (50, "context_length_exceeded")])
def test_a_prompt_that_is_too_long_is_told_by_code(prompt: int, code: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        add(make(max_len=50), "a", prompt, 5)
    assert refused.value.code == code and refused.value.param == "prompt"


def test_a_short_prompt_behind_a_long_one_gets_what_is_left() -> None:
    scheduler = make(budget=16, cap=10)
    add(scheduler, "decoding", 2, 9)
    advance(scheduler)
    add(scheduler, "long", 200, 9)
    add(scheduler, "short", 5, 9)
    assert widths(advance(scheduler)) == [(2, 1, True), (0, 10, False), (0, 5, True)]
    scheduler.limits = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=16, long_prefill_token_threshold=3)
    assert widths(advance(scheduler)) == [(3, 1, True), (10, 3, False), (5, 1, True)], "limits may be replaced"


def test_preemption_from_outside_is_told_with_the_next_plan() -> None:
    traffic = Traffic(make(budget=100))
    for name in "ab":
        traffic.add(name, range(10), 9)
    scheduler = traffic.scheduler
    scheduler.preempt("a")
    assert scheduler.stats().preemptions_total == 0, "one that waits is let be"
    traffic.step()
    traffic.preempt("a")
    traffic.preempt("b")
    scheduler.check()
    traffic.abort("b")
    plan = traffic.step()
    assert plan is not None and scheduler.preempted == ("a",) and [one.request_id for one in plan.admitted] == ["a"]
    traffic.step()
    assert scheduler.preempted == () and scheduler.stats().preemptions_total == 2
    with pytest.raises(KeyError):
        scheduler.preempt("b")


def test_preempted_requests_draw_the_same_tokens() -> None:
    """Ten times more known tokens than places."""
    answers = []
    for blocks in (1000, 9):
        traffic = Traffic(make(rows=6, budget=24, blocks=blocks, max_len=36))
        for number in range(30):
            traffic.add(f"r{number}", [number % 3] * (6 + number % 4), 10)
        steps = traffic.run(1500)
        answers.append({name: sequence.drawn for name, sequence in traffic.over.items()})
        preemptions = traffic.scheduler.stats().preemptions_total
        assert preemptions <= steps
    assert preemptions > 0 and answers[0] == answers[1] and len(answers[0]) == 30


def test_what_is_scored_counts_the_tokens_whose_next_one_is_known() -> None:
    traffic = Traffic(make(budget=6, cap=4))
    traffic.add("first", [1] * 9, 2)
    traffic.run()
    traffic.add("scored", [1] * 9, 3, scored=True)
    plans = [traffic.step() for _ in range(4)]
    assert [(row.start, row.count, row.scored) for plan in plans if plan for row in plan.rows] == [
        (0, 4, 4), (4, 4, 4), (8, 1, 0), (9, 1, 0),
    ]  # fmt: skip


def test_usage_and_waste_are_of_places() -> None:
    traffic = Traffic(make(budget=100, blocks=10))
    traffic.add("a", [1] * 5, 9)
    traffic.step()
    stats = traffic.scheduler.stats()
    assert (stats.kv_blocks, stats.kv_usage, stats.kv_waste, stats.cached_blocks) == (10, 0.2, 3 / 8, 0)
    traffic.add("b", [1] * 6, 9)
    traffic.step()
    stats = traffic.scheduler.stats()
    assert (stats.kv_usage, stats.kv_waste, stats.computed_tokens_total) == (0.3, 4 / 12, 5 + 1 + 2)
    for name in "ab":
        traffic.abort(name)
    stats = traffic.scheduler.stats()
    assert (stats.kv_usage, stats.kv_waste, stats.cached_blocks) == (0.0, 0.0, 1)


def test_counting_loads_no_array_library() -> None:
    code = "import sys, pelton.schedule.scheduler; sys.exit(not {'numpy', 'torch'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
