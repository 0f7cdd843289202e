"""Hits in the midst of a block: what is copied, what is left to compute, and what becomes of copies that were bad."""

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection
from pelton.core.plan import Lookup, StepPlan

PARTS = CacheSection()
FIRST = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def admitted(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {one.request_id: one.cached for one in plan.admitted}


@pytest.mark.parametrize("windows", [(None,), (6, None), (3,)])
@pytest.mark.parametrize(("prompt", "cached"), [
    (FIRST, 8),
    ([1, 2, 3, 4, 5, 6, 7, 7, 9], 7),
    ([1, 2, 3, 4, 5, 6, 7, 8], 7),  # the last token is left to compute
    ([1, 2, 3, 4, 5, 6], 5),
    ([1, 2, 3, 4, 5], 4),
    ([1, 2, 3, 4], 3),
    ([1, 2], 1),
    ([1], 0),
    ([1, 2, 7, 7, 7], 2),
    ([2, 2, 3, 4, 5], 0),
])  # fmt: skip
def test_a_request_begins_at_the_first_token_that_differs(
    prompt: list[int], cached: int, windows: tuple[int | None, ...]
) -> None:
    traffic = Traffic(make(cache=PARTS, windows=windows), windows)
    traffic.add("first", FIRST, 1)
    traffic.run()
    traffic.add("next", prompt, 6)
    plan = traffic.step()
    assert admitted(plan) == {"next": cached} and plan is not None
    copies = [op for op in plan.state_ops if op.kind == "copy"]
    assert len(copies) == (len(windows) if cached % BLOCK else 0)
    traffic.run()
    assert traffic.computed == len(FIRST) + len(prompt) - cached + 5
    assert traffic.scheduler.stats().prefix_hits_total == cached


def test_off_begins_behind_whole_blocks() -> None:
    traffic = Traffic(make(cache=CacheSection(partial_prefix_blocks=False)))
    traffic.add("first", FIRST, 1)
    traffic.run()
    traffic.add("next", FIRST[:8], 1)
    assert admitted(traffic.step()) == {"next": 4}


def test_the_block_that_shares_most_is_copied_of_many() -> None:
    traffic = Traffic(make(cache=PARTS, blocks=300, budget=100))
    for number in range(100):
        traffic.add(f"r{number}", [1, 2, number // 10, number % 10, 5], 1)
        traffic.run()
    for last, cached in ((5, 5), (50, 3)):
        traffic.add("next", [1, 2, 3, last, 5, 6], 1)
        assert admitted(traffic.step()) == {"next": cached}
        traffic.run()
    traffic.add("other", [1, 2, 50, 5, 5, 6], 1)
    assert admitted(traffic.step()) == {"other": 2}
    traffic.run()


def test_a_block_that_is_not_computed_yet_is_not_copied() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("first", FIRST, 1)
    traffic.add("second", [1, 2, 3, 4, 5, 6, 9, 9, 9], 1)
    assert admitted(traffic.step()) == {"first": 0, "second": 4}, "it finds what this step computes, and copies nothing"


def test_the_copy_becomes_a_block_of_its_own() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("first", FIRST, 1)
    traffic.run()
    traffic.add("second", [1, 2, 3, 4, 5, 6, 9, 9, 9], 1)
    assert admitted(traffic.step()) == {"second": 6}
    traffic.run()
    for name, prompt in (("third", [*FIRST, 1]), ("fourth", [1, 2, 3, 4, 5, 6, 9, 9, 9, 9])):
        traffic.add(name, prompt, 1)
        assert admitted(traffic.step()) == {name: 9}
        traffic.run()
    assert traffic.scheduler.stats().cached_blocks == 3 + 4, "whole ones, and the ends of four requests"


def test_what_is_copied_is_not_evicted_for_the_copy() -> None:
    """Four blocks are cached, one is free: the request shares the first, copies the second, and evicts the others."""
    traffic = Traffic(make(cache=PARTS, budget=100, blocks=5, max_len=20))
    traffic.add("first", [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9], 1)
    traffic.run()
    assert traffic.scheduler.stats().cached_blocks == 4
    traffic.add("second", [1, 2, 3, 4, 5, 6, 0, 0, 9, 9, 9, 9, 9], 2)
    assert admitted(traffic.step()) == {"second": 6}
    traffic.run()
    assert traffic.scheduler.stats().prefix_evictions_total >= 1


def test_who_needs_the_whole_pool_copies_nothing() -> None:
    """The block to copy from has no place beside the request's own."""
    traffic = Traffic(make(cache=PARTS, budget=100, blocks=5, max_len=20))
    traffic.add("first", [1, 2, 3, 4, 5, 6, 7, 8, 9], 1)
    traffic.run()
    traffic.add("second", [1, 2, 3, 4, 5, 6, *[0] * 13], 1)
    assert admitted(traffic.step()) == {"second": 4}
    traffic.run()


def test_a_copy_of_a_bad_block_is_computed_again_and_the_block_leaves_the_tree() -> None:
    traffic = Traffic(make(cache=PARTS, budget=8))
    traffic.add("unnoticed", [1] * 20, 1)
    traffic.step(faulty=lambda sequence: sequence.name == "unnoticed")
    traffic.abort("unnoticed")
    traffic.add("reader", [1, 1, 1], 3)
    assert admitted(traffic.step()) == {"reader": 2} and traffic.seen["fault again"] == 1
    traffic.run()
    traffic.add("next", [1, 1, 1], 3)
    assert admitted(traffic.step()) == {"next": 0}
    traffic.run()
    assert traffic.seen["fault again"] == 1 and traffic.seen["fault"] == 0


def test_a_step_that_broke_leaves_no_half_made_copy() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("first", FIRST, 1)
    traffic.run()
    traffic.add("second", FIRST[:6], 3)
    traffic.break_step(rows=0)
    assert admitted(traffic.step()) == {"second": 5}
    traffic.run()


def lookups(traffic: Traffic, name: str, prompt: list[int], **kind: object) -> list[Lookup | None]:
    """Those told of this request until it is over."""
    traffic.add(name, prompt, 1, **kind)  # type: ignore[arg-type]
    told: list[Lookup | None] = []
    while name in traffic.open:
        plan = traffic.step()
        assert plan is not None
        told += [one.lookup for one in plan.admitted if one.request_id == name]
    return told


def test_each_request_is_told_once_why_it_found_no_more() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    for name, prompt, kind, wanted in (
        ("a", FIRST, {}, Lookup("unseen")),
        ("b", FIRST, {}, Lookup("complete", 8)),
        ("c", FIRST[:8], {}, Lookup("complete", 7)),
        ("d", [1, 2, 3, 4, 5, 6, 9, 9, 9], {}, Lookup("diverged", 6, 9, 7)),
        ("e", FIRST, {"salt": "x"}, Lookup("namespace")),
        ("f", FIRST, {"scored": True}, Lookup("disabled")),
        ("g", FIRST, {"shared": False}, Lookup("disabled")),
        ("h", [1], {}, Lookup("too_short")),
    ):
        assert lookups(traffic, name, prompt, **kind) == [wanted], name
    assert traffic.scheduler.stats().prefix_hits_total == 8 + 7 + 6


def test_who_begins_again_is_not_told_again() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("only", FIRST, 6)
    first = traffic.step()
    assert first is not None and [one.lookup for one in first.admitted] == [Lookup("unseen")]
    traffic.preempt("only")
    again = traffic.step()
    assert again is not None and [(one.cached, one.lookup) for one in again.admitted] == [(8, None)]
    traffic.run()
