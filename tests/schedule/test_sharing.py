"""Prefix reuse at admission: hits, misses, readers of the same step, waiting for a prompt that is being computed."""

from collections.abc import Sequence

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection
from pelton.core.plan import StepPlan
from pelton.schedule.planner import MOST_PASSED_OVER
from pelton.schedule.sharing import Sharing
from pelton.schedule.tracked import Start, Tracked

LONG = [number * 7 % 11 for number in range(1500)]


def admitted(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {one.request_id: one.cached for one in plan.admitted}


def test_a_request_begins_with_what_an_earlier_one_left() -> None:
    traffic = Traffic(make())
    traffic.add("first", [1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    traffic.run()
    for name, prompt, cached in (
        ("same", [1, 2, 3, 4, 5, 6, 7, 8, 9], 8),
        ("longer", [1, 2, 3, 4, 5, 6, 7, 8, 7, 7, 7, 7, 7], 8),
        ("other", [1, 2, 3, 4, 5, 6, 7, 7, 9], 4),
        ("none", [2, 2, 3, 4, 5, 6, 7, 8, 9], 0),
        ("exact", [1, 2, 3, 4, 5, 6, 7, 8], 4),  # a token must be left to compute
    ):
        traffic.add(name, prompt, 1)
        assert admitted(traffic.step()) == {name: cached}
        traffic.run()
    stats = traffic.scheduler.stats()
    assert (stats.prefix_queries_total, stats.prefix_hits_total, stats.prefix_inflight_total) == (9 + 48, 24, 0)


def test_a_prompt_is_looked_up_once_however_often_it_is_computed() -> None:
    """So that vllm:prefix_cache_queries are tokens of prompts."""
    traffic = Traffic(make(rows=8, budget=64))
    traffic.add("first", range(9), 6)
    for child in range(3):
        traffic.add(f"p/{child}" if child else "p", range(9), 6, seed=child, parent="p" if child else None)
    for _ in range(4):
        traffic.step()
        traffic.preempt("first")
        traffic.preempt("p")
    traffic.run()
    stats = traffic.scheduler.stats()
    assert stats.preemptions_total == 8
    assert (stats.prefix_queries_total, stats.prefix_hits_total) == (2 * 9, 8)


def test_a_prompt_is_looked_up_once_also_where_its_children_go_on_alone() -> None:
    traffic = Traffic(make(rows=8, budget=8))
    for child in range(3):
        traffic.add(f"p/{child}" if child else "p", range(20), 6, seed=child, parent="p" if child else None)
    traffic.step()
    traffic.abort("p")
    traffic.run()
    stats = traffic.scheduler.stats()
    assert stats.prefix_queries_total == 20 and stats.prefix_hits_total == stats.prefix_inflight_total == 0


@pytest.mark.parametrize(("cap", "other"), [
    (0, {}), (0, {"parent": "p"}), (0, {"salt": "other"}), (7, {}), (7, {"parent": "p"}),
])  # fmt: skip
def test_who_lacks_neither_row_nor_memory_is_told_apart(cap: int, other: dict[str, object]) -> None:
    """Who waits for what another computes is passed over; where a prompt takes the whole step, so is everybody."""
    traffic = Traffic(make(rows=8, budget=8, cap=cap))
    traffic.add("p", range(20), 30)
    for child in range(1, 4):
        traffic.add(f"q{child}", range(20), 3, seed=child, **other)  # type: ignore[arg-type]
    figures = []
    while traffic.scheduler.num_waiting or not figures:
        traffic.step()
        stats = traffic.scheduler.stats()
        figures.append((stats.running, stats.waiting, stats.deferred))
    assert figures[:2] == [(1, 3, 3), (1, 3, 3)]
    for running, waiting, deferred in figures:
        assert deferred == waiting == 4 - running, "rows are free all the time"


@pytest.mark.parametrize(("rows", "blocks"), [(1, 100), (4, 3)])
def test_who_waits_for_a_row_or_memory_is_not_deferred(rows: int, blocks: int) -> None:
    traffic = Traffic(make(rows=rows, blocks=blocks, budget=100, max_len=12))
    for name in "abc":
        traffic.add(name, [ord(name)] * 9, 3)
    traffic.step()
    stats = traffic.scheduler.stats()
    assert (stats.running, stats.waiting, stats.deferred) == (1, 2, 0)


def test_generated_tokens_are_found_as_the_next_turn() -> None:
    traffic = Traffic(make())
    traffic.add("first", [1, 2, 3], 10)
    traffic.run()
    answer = traffic.over["first"].drawn
    traffic.add("next", [1, 2, 3, *answer, 5, 5], 1)
    assert admitted(traffic.step()) == {"next": 12}, "the last drawn token was never computed"


@pytest.mark.parametrize("kind", [
    {"salt": "other"}, {"shared": False}, {"scored": True},
])  # fmt: skip
def test_who_finds_nothing(kind: dict[str, object]) -> None:
    traffic = Traffic(make())
    traffic.add("first", [1] * 9, 1)
    traffic.run()
    traffic.add("second", [1] * 9, 1, **kind)  # type: ignore[arg-type]
    assert admitted(traffic.step()) == {"second": 0}
    assert traffic.scheduler.stats().prefix_hits_total == 0


def test_a_scored_prompt_is_found_by_others() -> None:
    traffic = Traffic(make())
    traffic.add("scored", [1] * 9, 1, scored=True)
    traffic.run()
    traffic.add("second", [1] * 9, 1)
    assert admitted(traffic.step()) == {"second": 8}


def test_off_shares_nothing_and_keeps_nothing() -> None:
    traffic = Traffic(make(cache=CacheSection(enable_prefix_caching=False)))
    for name in "ab":
        traffic.add(name, [1] * 9, 1)
        assert admitted(traffic.step()) == {name: 0}
    stats = traffic.scheduler.stats()
    assert stats.cached_blocks == stats.prefix_queries_total == 0 and stats.kv_usage == 0


def test_cached_blocks_make_way_before_anybody_is_preempted() -> None:
    traffic = Traffic(make(budget=100, blocks=8, max_len=30))
    traffic.add("first", [1] * 9, 1)
    traffic.run()
    assert traffic.scheduler.stats().cached_blocks == 2
    traffic.add("large", [2] * 9, 20)
    traffic.run()
    stats = traffic.scheduler.stats()
    assert stats.preemptions_total == 0 and stats.prefix_evictions_total >= 1
    assert stats.cached_blocks <= 8


def test_reset_forgets() -> None:
    traffic = Traffic(make())
    traffic.add("first", [1] * 9, 1)
    traffic.run()
    traffic.scheduler.reset_prefix_cache()
    traffic.add("second", [1] * 9, 1)
    assert admitted(traffic.step()) == {"second": 0}


def test_readers_are_planned_behind_the_writer_in_the_same_step() -> None:
    traffic = Traffic(make(rows=8, budget=100))
    for number in range(8):
        traffic.add(f"r{number}", [1] * 9, 2)
    plan = traffic.step()
    assert admitted(plan) == {"r0": 0} | {f"r{number}": 8 for number in range(1, 8)}
    assert plan is not None and [(row.start, row.count) for row in plan.rows] == [(0, 9)] + [(8, 1)] * 7
    assert traffic.scheduler.stats().prefix_inflight_total == 7 * 8


@pytest.mark.parametrize(("budget", "cap"), [(512, 0), (512, 100), (64, 0), (4096, 0)])
def test_many_requests_compute_what_they_share_once(budget: int, cap: int) -> None:
    count, own = 32, 7
    traffic = Traffic(make(rows=count, budget=budget, cap=cap, blocks=2000, max_len=2000))
    for number in range(count):
        traffic.add(f"r{number}", LONG + [number] * own, 4)
    traffic.run()
    shared = len(LONG) // BLOCK * BLOCK
    alone = len(LONG) + own - shared
    assert traffic.computed == shared + count * (alone + 3), "3 more tokens each: the last drawn one is never computed"
    stats = traffic.scheduler.stats()
    assert stats.prefix_hits_total == (count - 1) * shared
    # Who is reached only by a later step finds a part computed already.
    assert 0 < stats.prefix_inflight_total <= stats.prefix_hits_total
    assert budget < len(LONG) or stats.prefix_inflight_total == stats.prefix_hits_total


def test_who_waits_for_a_prompt_is_passed_by_others_and_goes_on_as_soon_as_it_is_there() -> None:
    traffic = Traffic(make(rows=4, budget=16))
    traffic.add("first", [1] * 40, 3)
    traffic.step()
    traffic.add("second", [1] * 37 + [2], 3)
    traffic.add("third", [3] * 2, 3)
    seen = [admitted(traffic.step()) for _ in range(2)]
    assert seen[0] == {}, "first takes the whole budget"
    assert seen[1] == {"second": 36, "third": 0}, "the step that computes the last common block takes the reader along"
    traffic = Traffic(make(rows=4, budget=16, cap=8))
    traffic.add("first", [1] * 40, 3)
    traffic.step()
    traffic.add("second", [1] * 37 + [2], 3)
    traffic.add("third", [3] * 2, 3)
    seen = [admitted(traffic.step()) for _ in range(4)]
    assert seen == [{"third": 0}, {}, {}, {"second": 36}]


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_who_waits_goes_on_alone_when_the_other_is_gone(end: str) -> None:
    traffic = Traffic(make(rows=1 if end == "preempt" else 2, budget=8))
    traffic.add("first", [1] * 40, 3, arrival=1.0)
    traffic.step()
    traffic.step()
    traffic.add("second", [1] * 40, 3, arrival=0.0)
    if end == "abort":
        assert admitted(traffic.step()) == {}
        traffic.abort("first")
        assert admitted(traffic.step()) == {"second": 24}
    else:
        traffic.preempt("first")
        assert admitted(traffic.step()) == {"second": 16}
    traffic.run()


def test_nobody_waits_for_one_that_waits_or_decodes() -> None:
    traffic = Traffic(make(rows=3, budget=40))
    traffic.add("decoding", [1] * 10, 30)
    traffic.step()
    traffic.add("longer", [1] * 30, 3)
    assert admitted(traffic.step()) == {"longer": 8}


def test_a_preempted_request_finds_what_it_had_computed() -> None:
    traffic = Traffic(make(budget=100))
    traffic.add("only", [1] * 10, 12)
    for _ in range(6):
        traffic.step()
    traffic.preempt("only")
    assert admitted(traffic.step()) == {"only": 12}, "15 tokens known, prompt and answer"
    traffic.run()


def test_a_step_that_broke_leaves_nothing_to_find() -> None:
    traffic = Traffic(make(budget=100))
    traffic.add("first", [1] * 9, 4)
    traffic.break_step()
    traffic.abort("first")
    traffic.add("second", [1] * 9, 4)
    assert admitted(traffic.step()) == {"second": 0}
    traffic.run()


def test_equal_blocks_computed_apart_are_kept_apart() -> None:
    """Both are short of a full block when they begin, and draw the same tokens."""
    traffic = Traffic(make(budget=100))
    for name in "ab":
        traffic.add(name, [1, 2], 12)
    traffic.run()
    assert traffic.over["a"].drawn == traffic.over["b"].drawn
    assert traffic.scheduler.stats().cached_blocks == 3


def test_who_waits_for_what_another_computes_may_be_aborted() -> None:
    traffic = Traffic(make(budget=8, cap=4))
    traffic.add("first", [1] * 18, 2)
    traffic.add("waits", [1] * 17, 2)
    traffic.step()
    assert len(traffic.scheduler.sharing._waits) == 1 == traffic.scheduler.num_waiting
    traffic.abort("waits")
    traffic.scheduler.check()
    assert not traffic.scheduler.sharing._waits
    traffic.run()


def test_of_very_many_that_wait_few_are_looked_at_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room in the step is left over, and all but one wait for what that one computes."""
    number, looked = MOST_PASSED_OVER + 200, list[int]()
    traffic = Traffic(make(rows=8, budget=64, cap=8, blocks=600, max_len=60))
    start, plan = Sharing.start, traffic.scheduler.plan

    def counted(self: Sharing, request: Tracked, running: Sequence[Tracked], *, parts: bool = True) -> Start | None:
        looked[-1] += 1
        return start(self, request, running, parts=parts)

    def planned(now: float = 0.0) -> StepPlan | None:
        looked.append(0)
        return plan(now)

    monkeypatch.setattr(Sharing, "start", counted)
    monkeypatch.setattr(traffic.scheduler, "plan", planned)
    for one in range(number):
        traffic.add(f"r{one}", [1] * 40 + [2 + one % 5], 1)
    traffic.run()
    assert len(traffic.over) == number and max(looked) == MOST_PASSED_OVER + 1
