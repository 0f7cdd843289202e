"""Plans made ahead: they are what would be planned when the step is over, or nothing is left of them."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.traffic import BLOCK, Sequence, Traffic, in_series, make, planning_ahead

from pelton.core.config import CacheSection
from pelton.core.plan import StepPlan
from pelton.kv.group import KVGroup
from pelton.kv.pool import NULL_BLOCK, BlockPool
from pelton.schedule import ORDERS
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest

SEEN: Counter[str] = Counter()


def ahead(rows: int = 4, budget: int = 16, blocks: int = 100, **more: object) -> Traffic:
    return Traffic(planning_ahead(make(rows, budget, blocks, **more)))  # type: ignore[arg-type]


def planned(traffic: Traffic) -> list[tuple[str | None, int, int]]:
    """What the next step computes, as (request, start, count)."""
    plan = traffic.step()
    assert plan is not None
    return [(traffic._names[row.row], row.start, row.count) for row in plan.rows]


def totals(traffic: Traffic) -> tuple[int, int, int]:
    """Plans that became steps, those of them that lost rows, and those taken back."""
    assert traffic.scheduler.ahead is not None
    figures = traffic.scheduler.ahead.figures
    return figures.used, figures.trimmed, figures.taken_back


def stop(traffic: Traffic, name: str) -> None:
    """The next token that is drawn for it ends it."""
    traffic.open[name].stops = True


def test_by_default_nothing_is_planned_ahead() -> None:
    plain, cache = make(), CacheSection()
    assert plain.ahead is None and not plain.stats().plans_ahead_total
    for depth in (1, 2):
        limits = replace(plain.limits, planning_depth=depth)
        made = Scheduler(limits, cache, ORDERS.get("fcfs")(), [KVGroup(BlockPool(9))], BLOCK, 30)
        assert (made.ahead is not None) == (depth == 2)


def test_each_step_but_the_first_is_planned_ahead() -> None:
    traffic = ahead()
    for name in "ab":
        traffic.add(name, [1, 2, 3], 6, seed=ord(name))
    assert planned(traffic) == [("a", 0, 3), ("b", 0, 3)]
    for place in range(3, 8):
        assert planned(traffic) == [("a", place, 1), ("b", place, 1)]
    assert traffic.step() is None and totals(traffic) == (5, 0, 0)
    stats = traffic.scheduler.stats()
    assert (stats.plans_ahead_total, stats.plans_trimmed_total, stats.plans_taken_back_total) == (5, 0, 0)


def test_who_ends_by_its_number_of_tokens_is_not_in_it() -> None:
    traffic = ahead()
    traffic.add("a", [1, 2, 3], 2)
    traffic.add("b", [1, 2], 9)
    traffic.step(), traffic.step()
    assert "a" in traffic.over and planned(traffic) == [("b", 3, 1)]
    assert totals(traffic) == (2, 0, 0)


@pytest.mark.parametrize("end", ["stop", "abort", "abort later"])
def test_the_row_of_one_that_is_over_is_dropped_with_its_blocks(end: str) -> None:
    traffic = ahead()
    for name in "ab":
        traffic.add(name, [ord(name) % 3] * BLOCK, 9, shared=False)
    # Its next token, the first one of a block, has its place by then.
    during = None if end == "abort later" else lambda: stop(traffic, "a") if end == "stop" else traffic.abort("a")
    traffic.step(during=during)
    if end == "abort later":
        traffic.abort("a")
    traffic.scheduler.check()
    assert planned(traffic) == [("b", BLOCK, 1)]
    assert totals(traffic) == (1, 1, 0)
    assert sum(traffic.scheduler._blocks.held) == 2, "the other one's"


def test_who_comes_meanwhile_is_in_the_next_step() -> None:
    """And begins in the row and with the budget that another one leaves."""
    traffic = ahead(rows=2, budget=6)
    for name in "ab":
        traffic.add(name, [1, 2, 3], 9, seed=ord(name))
    traffic.step(during=lambda: traffic.add("c", [2] * 9, 3))
    traffic.step(during=lambda: stop(traffic, "a"))
    assert planned(traffic) == [("b", 4, 1), ("c", 0, 5)]
    assert totals(traffic) == (2, 1, 0)
    traffic.run()


def test_what_one_leaves_goes_to_a_prompt_that_was_cut_short() -> None:
    """Then the plan is made again, as it would be without."""
    traffic = ahead(budget=6)
    traffic.add("a", [1, 2], 9)
    traffic.add("b", [2] * 30, 3)
    assert planned(traffic) == [("a", 0, 2), ("b", 0, 4)]
    assert planned(traffic) == [("a", 2, 1), ("b", 4, 5)]
    traffic.step(during=lambda: stop(traffic, "a"))
    assert planned(traffic) == [("b", 14, 6)]
    assert totals(traffic) == (2, 0, 1)


def test_preempted_from_outside_it_begins_again_in_the_same_plan() -> None:
    traffic = ahead()
    for name in "ab":
        traffic.add(name, [1, 2, 3], 9, seed=ord(name), shared=False)
    traffic.step(), traffic.step()
    traffic.preempt("b")
    assert planned(traffic) == [("a", 4, 1), ("b", 0, 5)]
    assert totals(traffic) == (2, 1, 0)


def test_other_limits_make_another_plan() -> None:
    traffic = ahead()
    traffic.add("a", [1] * 40, 3)
    traffic.step()
    traffic.scheduler.limits = replace(traffic.scheduler.limits, long_prefill_token_threshold=5)
    assert planned(traffic) == [("a", 16, 5)]
    assert totals(traffic) == (0, 0, 1)
    traffic.scheduler.limits = replace(traffic.scheduler.limits, max_num_batched_tokens=4)
    assert planned(traffic) == [("a", 21, 4)]
    assert totals(traffic) == (0, 0, 2)


def test_who_begins_behind_a_plan_ahead_is_bound_by_the_limits_of_now() -> None:
    traffic = ahead()
    traffic.add("a", [1, 2], 9)
    traffic.step()
    traffic.scheduler.limits = replace(traffic.scheduler.limits, long_prefill_token_threshold=5)
    traffic.add("b", [2] * 9, 3)
    assert planned(traffic) == [("a", 2, 1), ("b", 0, 5)]
    assert totals(traffic) == (1, 0, 0), "one token is as many by both"


@pytest.mark.parametrize(("drawn", "most", "count"), [(2, 9, 2), (1, 1, 1)])
def test_what_nobody_expected_is_planned_anew(drawn: int, most: int, count: int) -> None:
    """More tokens than one in a step; or one that goes on though it has all its tokens."""
    scheduler = planning_ahead(make())
    for name in ("a", "b"):
        scheduler.add(NewRequest(name, 3, most if name == "a" else 9))
    plan = scheduler.plan()
    assert plan is not None and scheduler.ahead is not None
    scheduler.ahead.make(plan, scheduler.limits)
    scheduler.commit(plan, {plan.rows[0].row: drawn, plan.rows[1].row: 1}, ())
    plan = scheduler.plan()
    assert plan is not None and [(row.start, row.count, row.sample) for row in plan.rows] == [
        (3, count, True),
        (3, 1, True),
    ]
    assert (scheduler.ahead.figures.used, scheduler.ahead.figures.taken_back) == (0, 1)
    scheduler.check()


def test_where_blocks_lack_nothing_is_planned_ahead_and_nothing_is_lost() -> None:
    traffic = ahead(blocks=4, rows=2)
    for name in "ab":
        traffic.add(name, [1, 2, 3], 12, seed=ord(name), shared=False)
    while traffic.scheduler._blocks.available[0]:
        traffic.step()
    before = totals(traffic)
    while traffic.scheduler._requests["a"].computed % BLOCK < 2:
        assert planned(traffic)
    used, trimmed, back = totals(traffic)
    assert used > before[0] and (trimmed, back) == before[1:]
    while not traffic.scheduler.stats().preemptions_total:
        held = traffic.scheduler._blocks.held
        traffic.step()
        assert held <= traffic.scheduler._blocks.held or traffic.scheduler.preempted
    traffic.run()
    assert totals(traffic)[2] == back, "what was not made is not taken back"


def test_behind_a_broken_step_it_is_taken_back() -> None:
    traffic = ahead()
    for name in "ab":
        traffic.add(name, [ord(name) % 3] * BLOCK, 9)
    traffic.break_step()
    traffic.scheduler.check()
    assert planned(traffic) == [("a", 0, BLOCK), ("b", 0, BLOCK)]
    assert totals(traffic) == (0, 0, 1)
    traffic.run()
    assert not sum(traffic.scheduler._blocks.held)


@pytest.mark.parametrize("back", [False, True])
def test_a_block_that_was_to_be_scrubbed_is_scrubbed_when_it_is_handed_out(back: bool) -> None:
    """Its row is dropped, or the whole plan is taken back."""
    traffic = ahead(rows=3, blocks=6)
    traffic.add("bad", [1] * (BLOCK - 1), 3, shared=False)
    traffic.add("a", [2] * BLOCK, 8, shared=False)
    traffic.add("b", [0] * BLOCK, 12, shared=False)
    traffic.step(faulty=lambda sequence: sequence.name == "bad")
    (spoilt,) = traffic.noticed
    while traffic.scheduler._requests["a"].computed < 2 * BLOCK - 1:
        traffic.step()
    assert traffic.noticed == {spoilt}
    if back:
        traffic.break_step()
    else:
        traffic.step(during=lambda: traffic.abort("a"))
    traffic.add("c", [1] * BLOCK, 8, shared=False)
    traffic.run()
    assert traffic.seen["scrub"] and not traffic.noticed
    assert totals(traffic)[1:] == ((1, 1) if back else (2, 0)), "the bad one's row was dropped too"


def test_a_block_that_was_overwritten_meanwhile_is_left_alone() -> None:
    traffic = ahead(rows=3, blocks=6)
    traffic.add("bad", [1] * (BLOCK - 1), 3, shared=False)
    for name in "ab":
        traffic.add(name, [2] * BLOCK, 8, shared=False)
    traffic.step(faulty=lambda sequence: sequence.name == "bad")
    while traffic.scheduler._requests["a"].computed < 2 * BLOCK:
        traffic.step()
    traffic.abort("a")
    blocks = traffic.scheduler._blocks
    taken = blocks.alloc(3, overwritten=True)  # as whoever puts a slot's content there
    assert taken is not None and traffic.noticed <= {(0, block) for block in taken[0]} and blocks._to_scrub
    traffic.scheduler.plan()
    assert not blocks._poisoned and not blocks._to_scrub


def test_a_block_that_is_filled_is_found_in_the_very_step_that_fills_it() -> None:
    """Though the plan for who fills it was made before it was known what stands in it."""
    traffic = ahead()
    traffic.add("a", [1] * (BLOCK - 1), 9)
    traffic.step()
    traffic.add("b", [*traffic.open["a"].tokens, 2, 2], 3)
    plan = traffic.step()
    assert plan is not None and [one.cached for one in plan.admitted] == [BLOCK]
    assert traffic.scheduler.stats().prefix_inflight_total == BLOCK and totals(traffic) == (1, 0, 0)
    traffic.run()


def test_a_series_behind_a_plan_ahead() -> None:
    """The rows are there, and become a series; behind one nothing is planned ahead."""
    traffic = Traffic(planning_ahead(in_series(make(), 3)))
    traffic.add("a", [1, 2], 8, settles=0)
    repeats = []
    while (plan := traffic.step()) is not None:
        repeats.append(plan.repeat)
    assert repeats == [1, 3, 3, 1] and totals(traffic) == (1, 0, 0)


def told(plan: StepPlan | None) -> object:
    """All but the numbers of blocks."""
    if plan is None:
        return None
    new = plan.new_blocks.items()
    added = {row: [[block == NULL_BLOCK for block in blocks] for blocks in held] for row, held in new}
    kinds = Counter((op.kind, op.group) for op in plan.state_ops)
    return plan.rows, plan.admitted, plan.released, sorted(added.items()), kinds, plan.repeat


OPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "abort", "stop", "preempt", "step", "step", "step")),
        st.integers(0, 40),
        st.integers(1, 14),
        st.booleans(),
    ),
    min_size=6,
    max_size=40,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    OPS,
    st.sampled_from(ORDERS.names()),
    st.sampled_from((5, 9, 40)),
    st.sampled_from((0, 4)),
    st.sampled_from(((None,), (6, None))),
    st.tuples(st.sampled_from((1, 3)), st.sampled_from((0.0, 0.05)), st.sampled_from((0, 100))),
)
def check_twins(
    ops: list[tuple[str, int, int, bool]],
    order: str,
    budget: int,
    cap: int,
    windows: tuple[int | None, ...],
    more: tuple[int, float, int],
) -> None:
    def one(depth: int) -> Traffic:
        made = make(4, budget, 900, 60, cap, order=ORDERS.get(order)(), windows=windows)
        made = in_series(made if depth == 1 else planning_ahead(made), more[0])
        made.limits = replace(made.limits, context_cost=more[1], itl_target_ms=more[2])
        return Traffic(made, windows)

    twins = one(1), one(2)
    number = 0

    def faulty(sequence: Sequence) -> bool:
        return len(sequence.tokens) % 11 == 10 and sequence.name.endswith("5")

    for kind, place, answer, early in [*ops, *[("step", 0, 0, False)] * 60]:
        if kind == "add":
            number += 1
            for traffic in twins:
                prompt = [0, 1, 2, 2] * 5 + [place % 3]
                settles = 0 if early else None
                traffic.add(f"r{number}", prompt[-1 - place % 21 :], answer, settles=settles, arrival=float(number))
            continue
        names = sorted(twins[0].open)
        name = names[place % len(names)] if names else ""

        def disturb(traffic: Traffic, kind: str = kind, name: str = name) -> None:
            if name in traffic.open and kind != "step":
                {"abort": traffic.abort, "stop": partial(stop, traffic), "preempt": traffic.preempt}[kind](name)

        for traffic in twins:
            if not early:
                disturb(traffic)
        plans = [
            traffic.step(faulty=faulty, during=partial(disturb, traffic) if early else None, most=2)
            for traffic in twins
        ]
        assert told(plans[0]) == told(plans[1])
    used, trimmed, back = totals(twins[1])
    SEEN.update({"used": used, "trimmed": trimmed, "taken back": back})


def test_every_plan_is_the_one_that_would_be_made_then() -> None:
    """With memory for everybody: who plans ahead allocates a little earlier."""
    SEEN.clear()
    check_twins()
    assert min(SEEN[name] for name in ("used", "trimmed", "taken back")) > 20, SEEN
