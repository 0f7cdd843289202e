"""Further answers to a prompt: computed once, copied on write, and what becomes of children when the parent goes."""

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection
from pelton.core.plan import StepPlan
from pelton.schedule.tracked import NewRequest

OFF = CacheSection(enable_prefix_caching=False)


def family(traffic: Traffic, prompt: int, answers: int, room: int = 6, **kind: object) -> None:
    for child in range(answers):
        parent = "p" if child else None
        traffic.add(f"p/{child}" if child else "p", range(prompt), room, seed=child, parent=parent, **kind)  # type: ignore[arg-type]


def admitted(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {one.request_id: one.cached for one in plan.admitted}


@pytest.mark.parametrize("cache", [CacheSection(), OFF])
@pytest.mark.parametrize("prompt", [2, 3, 4, 5, 8, 9, 11, 33])
def test_the_prompt_is_computed_once_and_each_child_computes_one_token(prompt: int, cache: CacheSection) -> None:
    traffic = Traffic(make(rows=8, budget=64, cache=cache))
    family(traffic, prompt, 4)
    assert admitted(traffic.step()) == {"p": 0}
    plan = traffic.step()
    assert admitted(plan) == {f"p/{child}": prompt - 1 for child in (1, 2, 3)} and plan is not None
    copies = 3 if (prompt - 1) % BLOCK else 0
    assert [op.kind for op in plan.state_ops] == ["copy"] * copies
    assert [(row.start, row.count) for row in plan.rows] == [(prompt, 1)] + [(prompt - 1, 1)] * 3
    traffic.run()
    assert traffic.computed == prompt + 3 + 4 * 5
    assert traffic.scheduler.stats().copied_blocks_total == copies
    answers = {name: sequence.drawn for name, sequence in traffic.over.items()}
    for child in range(4):
        alone = Traffic(make())
        alone.add("alone", range(prompt), 6, seed=child)
        alone.run()
        assert alone.over["alone"].drawn == answers[f"p/{child}" if child else "p"]


def test_a_prompt_of_one_token_has_nothing_to_share() -> None:
    traffic = Traffic(make(budget=64, cache=OFF))
    family(traffic, 1, 3)
    assert [admitted(traffic.step()) for _ in range(2)] == [{"p": 0}, {"p/1": 0, "p/2": 0}]
    traffic.run()


def test_children_come_directly_behind_the_parent() -> None:
    traffic = Traffic(make(rows=2, budget=64))
    traffic.add("before", [5] * 4, 3)
    traffic.add("p", range(6), 2)
    traffic.add("after", [6] * 4, 3)
    for child in (1, 2):
        traffic.add(f"p/{child}", range(6), 2, seed=child, parent="p", arrival=9.0)
    order = []
    while (plan := traffic.step()) is not None:
        order += [one.request_id for one in plan.admitted]
    assert order == ["before", "p", "p/1", "p/2", "after"]


def test_children_outlive_a_parent_that_ends_with_its_first_token() -> None:
    traffic = Traffic(make(rows=4, budget=64, cache=OFF))
    family(traffic, 10, 3, room=1)
    traffic.add("other", [3] * 3, 5)
    traffic.step()
    assert "p" in traffic.over
    assert admitted(traffic.step()) == {"p/1": 9, "p/2": 9}
    assert traffic.scheduler.stats().copied_blocks_total == 2
    traffic.run()
    assert traffic.scheduler.stats().kv_usage == 0


@pytest.mark.parametrize("when", ["waiting", "half computed"])
@pytest.mark.parametrize("cache", [CacheSection(), OFF])
def test_children_of_a_parent_that_is_aborted_early_go_on_alone(when: str, cache: CacheSection) -> None:
    traffic = Traffic(make(rows=2, budget=8, cache=cache))
    family(traffic, 20, 3, room=2)
    if when == "half computed":
        traffic.step()
    traffic.abort("p")
    plan = traffic.step()
    found = 8 if when == "half computed" and cache is not OFF else 0
    assert admitted(plan) == {"p/1": found}
    traffic.run()
    assert traffic.over.keys() == {"p/1", "p/2"}


def test_children_wait_for_a_parent_that_is_preempted() -> None:
    traffic = Traffic(make(rows=4, budget=8, cache=OFF))
    family(traffic, 20, 3)
    traffic.step()
    traffic.preempt("p")
    seen = [admitted(traffic.step()) for _ in range(4)]
    assert seen == [{"p": 0}, {}, {}, {"p/1": 19, "p/2": 19}]
    traffic.run()


def test_children_keep_what_a_parent_computed_that_is_preempted_later() -> None:
    traffic = Traffic(make(rows=1, budget=64, cache=OFF))
    family(traffic, 10, 2)
    traffic.step()
    traffic.preempt("p")
    assert admitted(traffic.step()) == {"p": 0}, "the only row is the parent's again"
    traffic.abort("p")
    assert admitted(traffic.step()) == {"p/1": 9}
    traffic.run()


def test_a_child_that_comes_later_forks_too() -> None:
    traffic = Traffic(make(rows=4, budget=64, cache=OFF))
    family(traffic, 10, 1)
    traffic.step()
    traffic.step()
    traffic.add("late", range(10), 3, parent="p")
    traffic.add("too long for rows", range(10), 3, parent="nobody")
    assert admitted(traffic.step()) == {"late": 9, "too long for rows": 0}
    with pytest.raises(ValueError, match="9 prompt tokens, not 10"):
        traffic.scheduler.add(NewRequest("wrong", 9, 3, parent="p"))
    assert "wrong" not in traffic.open
    traffic.run()


def test_what_a_broken_step_was_to_compute_is_not_held_for_children() -> None:
    """The parent, preempted, finds its prompt and more in blocks that another computes in the step that breaks."""
    traffic = Traffic(make(rows=4, budget=64))
    traffic.add("p", [1] * 6, 9)
    for _ in range(6):
        traffic.step()
    traffic.preempt("p")
    traffic.scheduler.reset_prefix_cache()
    traffic.wipe()
    traffic.add("writer", list(traffic.open["p"].tokens) + [1], 2, arrival=-1.0)
    traffic.break_step(rows=0)
    traffic.add("late", [1] * 6, 3, parent="p")
    traffic.run()
    assert traffic.over.keys() == {"p", "writer", "late"}


def test_blocks_held_for_children_make_way_before_a_running_request_does() -> None:
    traffic = Traffic(make(rows=2, budget=64, blocks=10, max_len=40, cache=OFF))
    traffic.add("old", [7] * 4, 36, arrival=-1.0)
    family(traffic, 14, 3, room=20)
    traffic.step()
    traffic.abort("p")
    plans = [traffic.step() for _ in range(4)]
    assert traffic.scheduler.stats().copied_blocks_total == 1 and admitted(plans[0]) == {"p/1": 13}
    while traffic.scheduler.stats().preemptions_total == 0 and traffic.step() is not None:
        pass
    assert not traffic.scheduler._forks.check(), "p/2 held its blocks while p/1 was preempted"
    traffic.run()
    assert len(traffic.over) == 3


def test_blocks_held_for_children_never_stop_everything() -> None:
    """The parent is gone, its blocks are held for a child, and the first in rank needs the whole pool."""
    traffic = Traffic(make(rows=1, budget=64, blocks=8, max_len=32, cache=OFF))
    family(traffic, 21, 2, room=4, arrival=1.0)
    traffic.step()
    traffic.abort("p")
    traffic.add("first", [8] * 25, 4, arrival=0.0)
    assert admitted(traffic.step()) == {"first": 0}
    traffic.run()
    assert traffic.computed == 21 + 25 + 3 + 21 + 3, "the child computes its prompt itself"


def test_held_blocks_count_as_used_and_their_empty_places_as_waste() -> None:
    traffic = Traffic(make(rows=1, budget=64, blocks=10))
    family(traffic, 10, 2)
    traffic.step()
    traffic.add("other", [8] * 4, 9, arrival=-1.0)
    traffic.abort("p")
    stats = traffic.scheduler.stats()
    assert (stats.kv_usage, stats.kv_waste) == (0.3, 3 / 12)
    traffic.abort("p/1")
    assert traffic.scheduler.stats().kv_usage == 0
