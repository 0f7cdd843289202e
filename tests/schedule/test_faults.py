"""Faults: bad blocks reach nobody else, are scrubbed before reuse, and who used others' blocks gets another try."""

from collections.abc import Callable

import pytest
from tests.schedule.traffic import Sequence, Traffic, make

from pelton.core.config import CacheSection
from pelton.core.plan import StepPlan


def only(*names: str) -> Callable[[Sequence], bool]:
    return lambda sequence: sequence.name in names


def cached(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {one.request_id: one.cached for one in plan.admitted}


def test_what_a_faulty_request_wrote_is_not_found_and_is_scrubbed_before_reuse() -> None:
    traffic = Traffic(make(budget=100, blocks=4, max_len=16))
    traffic.add("bad", [1] * 9, 4)
    traffic.step(faulty=only("bad"))
    assert "bad" in traffic.over and traffic.scheduler.stats().cached_blocks == 0
    traffic.add("next", [1] * 9, 5)
    plan = traffic.step()
    assert cached(plan) == {"next": 0} and plan is not None
    assert [op.kind for op in plan.state_ops] == ["scrub"] * 3, "blocks that were freed last are used first"
    assert not any(plan.state_ops for plan in iter(traffic.step, None) if plan), "once is enough"


def test_a_reader_of_a_faulty_writer_is_computed_again_alone() -> None:
    traffic = Traffic(make(budget=100))
    traffic.add("writer", [1] * 9, 4)
    traffic.add("reader", [1] * 10, 4)
    traffic.step(faulty=only("writer"))
    assert traffic.seen["fault"] == traffic.seen["fault again"] == 1 and traffic.open.keys() == {"reader"}
    assert cached(traffic.step()) == {"reader": 0} and traffic.scheduler.preempted == ("reader",)
    assert traffic.scheduler.stats().preemptions_total == 1
    traffic.run()
    alone = Traffic(make())
    alone.add("reader", [1] * 10, 4)
    alone.run()
    assert traffic.over["reader"].drawn == alone.over["reader"].drawn
    assert traffic.scheduler.stats().cached_blocks == 0, "private: it gives nothing either"


def test_a_second_fault_is_the_last() -> None:
    traffic = Traffic(make(budget=100))
    traffic.add("first", [1] * 9, 1)
    traffic.run()
    traffic.add("second", [1] * 9, 4)
    traffic.step(faulty=only("second"))
    assert traffic.open.keys() == {"second"}
    traffic.step(faulty=only("second"))
    assert traffic.open == {} and traffic.seen["fault"] == 1
    traffic.add("third", [1] * 9, 1)
    assert cached(traffic.step()) == {"third": 8}, "what the first one wrote was never shown to be bad"


def test_blocks_that_spoilt_a_reader_leave_the_tree_once_it_does_well_without_them() -> None:
    traffic = Traffic(make(budget=8))
    traffic.add("unnoticed", [1] * 20, 1)
    traffic.step(faulty=only("unnoticed"))
    traffic.abort("unnoticed")
    traffic.add("reader", [1] * 9, 3)
    assert cached(traffic.step()) == {"reader": 8} and traffic.seen["fault again"] == 1
    traffic.run()
    traffic.add("next", [1] * 9, 3)
    assert cached(traffic.step()) == {"next": 0}
    traffic.run()
    assert traffic.seen["fault again"] == 1 and traffic.seen["fault"] == 0


@pytest.mark.parametrize("cache", [CacheSection(), CacheSection(enable_prefix_caching=False)])
def test_children_of_a_faulty_parent_go_on_alone(cache: CacheSection) -> None:
    traffic = Traffic(make(budget=100, cache=cache))
    for child in range(3):
        traffic.add(f"p/{child}", [1] * 10, 3, seed=child, parent="p/0" if child else None)
    traffic.step(faulty=only("p/0"))
    assert "p/0" in traffic.over and traffic.open.keys() == {"p/1", "p/2"}
    assert cached(traffic.step()) == {"p/1": 0, "p/2": 8 if cache.enable_prefix_caching else 0}
    traffic.run()


def test_a_child_that_only_copied_gets_another_try() -> None:
    traffic = Traffic(make(budget=100))
    for child in range(2):
        traffic.add(f"p/{child}", [1] * 3, 3, seed=child, parent="p/0" if child else None)
    traffic.step()
    traffic.step(faulty=only("p/1"))
    assert traffic.seen["fault again"] == 1 and traffic.seen["copy"] == 1
    assert cached(traffic.step()) == {"p/1": 0}
    traffic.run()
    assert traffic.over.keys() == {"p/0", "p/1"}


def test_scrubbing_that_a_broken_step_should_have_done_is_done_later() -> None:
    traffic = Traffic(make(budget=100, blocks=4, max_len=16))
    traffic.add("bad", [1] * 9, 4)
    traffic.step(faulty=only("bad"))
    traffic.add("next", [1] * 9, 5)
    traffic.break_step()
    plan = traffic.step()
    assert plan is not None and [op.kind for op in plan.state_ops] == ["scrub"] * 3
    traffic.run()


def test_a_block_that_is_bad_is_copied_by_no_child_and_scrubbed_for_another() -> None:
    """The parent fails while it answers; the child that still waits for a row had its blocks in hand."""
    traffic = Traffic(make(rows=2, budget=100, cache=CacheSection(enable_prefix_caching=False)))
    traffic.add("other", [2] * 3, 9, arrival=-1.0)
    for child in range(2):
        traffic.add(f"p/{child}", [1] * 6, 4, seed=child, parent="p/0" if child else None)
    traffic.step()
    traffic.step(faulty=only("p/0"))
    traffic.abort("other")
    traffic.add("new", [3] * 3, 4)
    plan = traffic.step()
    assert cached(plan) == {"p/1": 0, "new": 0} and plan is not None
    assert {op.kind for op in plan.state_ops} == {"scrub"}
    traffic.run()


@pytest.mark.parametrize("cache", [CacheSection(), CacheSection(enable_prefix_caching=False)])
def test_no_child_begins_with_blocks_that_its_family_holds_of_a_parent_that_fails_later(cache: CacheSection) -> None:
    traffic = Traffic(make(rows=1, budget=100, cache=cache))
    for child in range(3):
        traffic.add(f"p/{child}", [1] * 10, 3, seed=child, parent="p/0" if child else None)
    traffic.step()
    traffic.step(faulty=only("p/0"))
    assert "p/0" in traffic.over and traffic.open.keys() == {"p/1", "p/2"}
    assert cached(traffic.step()) == {"p/1": 0}
    traffic.run()
    alone = Traffic(make())
    alone.add("alone", [1] * 10, 3, seed=2)
    alone.run()
    assert traffic.over["p/2"].drawn == alone.over["alone"].drawn
