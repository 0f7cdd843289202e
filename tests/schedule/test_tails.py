"""Tails: what a request that is over leaves of a block that it did not fill, and who goes on from there."""

import pytest
from tests.schedule.traffic import Traffic, make

from pelton.core.config import CacheSection
from pelton.core.plan import Lookup, StepPlan
from pelton.kv.node import Node

PARTS = CacheSection()
FIRST = [1, 2, 3, 4, 5, 6]
WINDOWS = [(None,), (6, None), (6,)]


def admitted(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {one.request_id: one.cached for one in plan.admitted}


def found(traffic: Traffic, prompt: list[int], room: int = 1, **kind: object) -> int:
    """Tokens with which a request for this prompt begins; it is over then."""
    traffic.add("next", prompt, room, **kind)  # type: ignore[arg-type]
    cached = admitted(traffic.step())["next"]
    traffic.run()
    return cached


def tails(traffic: Traffic) -> list[Node]:
    tree = traffic.scheduler._blocks.tree
    assert tree is not None
    nodes = list(tree.roots())
    for node in nodes:
        nodes.extend(node.children.values())
    return [node for node in nodes if node.tail]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("drawn", range(1, 9))
def test_the_next_turn_computes_nothing_of_this_one_but_its_last_token(
    drawn: int, windows: tuple[int | None, ...]
) -> None:
    traffic = Traffic(make(cache=PARTS, windows=windows), windows)
    traffic.add("turn", FIRST, drawn)
    traffic.run()
    before = traffic.computed
    assert before == len(FIRST) + drawn - 1
    said = traffic.over["turn"].tokens
    assert found(traffic, [*said, 7, 7, 7]) == len(said) - 1
    assert traffic.computed == before + 4


@pytest.mark.parametrize("windows", WINDOWS)
def test_many_go_on_from_one_and_each_has_a_copy(windows: tuple[int | None, ...]) -> None:
    traffic = Traffic(make(cache=PARTS, windows=windows), windows)
    traffic.add("first", FIRST, 1)
    traffic.run()
    for number in range(3):
        traffic.add(f"r{number}", [*FIRST, 7 + number], 3)
    plan = traffic.step()
    assert admitted(plan) == {"r0": 6, "r1": 6, "r2": 6} and plan is not None
    assert plan.num_tokens == 3 and sum(op.kind == "copy" for op in plan.state_ops) == 3 * len(windows)
    traffic.run()
    assert found(traffic, traffic.over["r1"].tokens) == 9


def test_another_one_parts_from_it_within() -> None:
    traffic = Traffic(make(cache=PARTS))
    traffic.add("first", [1, 2, 3, 4, 5, 6, 7], 1)
    traffic.run()
    traffic.add("next", [1, 2, 3, 4, 5, 6, 8, 9, 9], 1)
    plan = traffic.step()
    assert plan is not None
    assert [(one.cached, one.lookup) for one in plan.admitted] == [(6, Lookup("diverged", 6, 8, 7))]
    traffic.run()


def test_where_a_tail_ends_nothing_differs() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("first", FIRST, 1)
    traffic.run()
    traffic.add("next", [*FIRST, 7, 8, 9], 1)
    plan = traffic.step()
    assert plan is not None
    assert [(one.cached, one.lookup) for one in plan.admitted] == [(6, Lookup("unseen", 6))]
    traffic.run()


def test_one_that_another_block_goes_on_from_is_given_up_first() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100, blocks=6, max_len=24))
    traffic.add("first", FIRST, 1)
    traffic.run()
    assert [len(node.key) for node in tails(traffic)] == [8]
    assert found(traffic, [*FIRST, 7, 8, 9, 9]) == 6
    assert sorted(len(node.key) for node in tails(traffic)) == [8, 8], "that of the first, and the last two tokens"
    assert found(traffic, [9] * 9) == 0, "three blocks, of which one was free"
    assert found(traffic, [*FIRST, 7, 8, 9, 9]) == 9
    assert [node.key for node in tails(traffic) if node.parent is not None and node.parent.longer(node.key)] == []


def test_what_is_there_already_is_not_kept_again() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    for _ in range(3):
        assert found(traffic, FIRST, 1) in (0, 5)
        assert len(tails(traffic)) == 1 and traffic.scheduler.stats().cached_blocks == 2
    assert found(traffic, FIRST[:5], 1) == 4, "of 5 and 6 one block is kept"
    assert len(tails(traffic)) == 1


def test_whoever_ends_in_the_midst_leaves_what_it_had_computed() -> None:
    traffic = Traffic(make(cache=PARTS, budget=7))
    traffic.add("long", [1] * 20, 1)
    traffic.step()
    traffic.abort("long")
    assert found(traffic, [1] * 20) == 7
    assert traffic.scheduler.stats().held_blocks == 0


def test_an_end_during_a_step_that_breaks_leaves_nothing_half_made() -> None:
    """It began with a copy that was never made."""
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("first", FIRST, 1)
    traffic.run()
    traffic.add("second", [*FIRST, 9], 3)
    traffic.scheduler.plan()
    traffic.abort("second")
    traffic.wipe()
    traffic.scheduler.reset_prefix_cache()
    traffic.add("third", [*FIRST, 9], 3)
    assert admitted(traffic.step()) == {"third": 0}
    traffic.run()


def test_a_faulty_one_leaves_none() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("bad", [1, 2], 4)
    traffic.step()
    traffic.step(faulty=lambda sequence: True)
    assert "bad" in traffic.over and tails(traffic) == []
    assert found(traffic, [1, 2, 3]) == 0


def test_a_copy_of_a_bad_one_is_computed_again() -> None:
    traffic = Traffic(make(cache=PARTS, budget=100))
    traffic.add("unnoticed", [1, 2], 4)
    traffic.step(faulty=lambda sequence: False)
    traffic._memory[0, traffic.scheduler._blocks.groups[0].pool.total] = []
    bad = traffic.scheduler._requests["unnoticed"].table.blocks[0][0]
    traffic._memory[0, bad] = [-1] * 4
    traffic.abort("unnoticed")
    traffic.add("reader", [1, 2, 3], 2)
    assert admitted(traffic.step()) == {"reader": 2} and traffic.seen["fault again"] == 1
    traffic.run()
    assert found(traffic, [1, 2, 3, 4]) in (0, 3) and traffic.seen["fault"] == 0


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_session_holds_it(windows: tuple[int | None, ...]) -> None:
    cache = CacheSection(prefix_cache_tokens=0)
    traffic = Traffic(make(cache=cache, budget=100, windows=windows), windows)
    for turn in range(3):
        said = traffic.over["next"].tokens if turn else FIRST
        prompt = [*said, 1, 2, 3] if turn else FIRST
        assert found(traffic, prompt, 4, session="s") == (len(said) - 1 if turn else 0)
    assert (
        len(tails(traffic)) == 1 and traffic.scheduler.stats().held_blocks == traffic.scheduler.stats().session_blocks
    )


def test_without_parts_there_are_none() -> None:
    traffic = Traffic(make(cache=CacheSection(partial_prefix_blocks=False)))
    traffic.add("first", FIRST, 1)
    traffic.run()
    assert tails(traffic) == [] and traffic.scheduler.stats().cached_blocks == 1
