"""Sessions: what is held between the turns of a conversation, and how it makes way."""

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection
from pelton.core.plan import StepPlan
from pelton.schedule.sessions import Sessions

FIRST = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def sessions_of(traffic: Traffic) -> Sessions:
    return traffic.scheduler.sharing.sessions


def admitted(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {one.request_id: one.cached for one in plan.admitted}


def turn(traffic: Traffic, session: str, prompt: list[int], room: int = 1, **kind: object) -> int:
    """A request of the session from its first to its last step; how much of its prompt was there."""
    traffic.add("turn", prompt, room, session=session, **kind)  # type: ignore[arg-type]
    found = admitted(traffic.step())["turn"]
    traffic.run()
    return found


@pytest.mark.parametrize("session", ["", "s"])
@pytest.mark.parametrize("windows", [(None,), (8, None), (8,)])
def test_a_session_outlives_what_fills_the_cache(session: str, windows: tuple[int | None, ...]) -> None:
    traffic = Traffic(make(budget=100, blocks=10, max_len=40, windows=windows), windows)
    assert turn(traffic, session, FIRST) == 0
    assert traffic.scheduler.stats().held_blocks == (2 * len(windows) if session else 0)
    for number in range(20, 26):
        turn(traffic, "", [number] * 30)
    assert turn(traffic, session, FIRST) == (8 if session else 0)


def test_what_was_drawn_is_held_too() -> None:
    traffic = Traffic(make(budget=100))
    turn(traffic, "s", FIRST, 8)
    assert traffic.scheduler.stats().session_blocks == 4, "16 of 17 tokens are computed"
    assert turn(traffic, "s", [*traffic.over["turn"].tokens, 1]) == 16


def test_a_session_holds_the_last_turn_alone() -> None:
    traffic = Traffic(make(budget=100))
    turn(traffic, "s", FIRST)
    turn(traffic, "s", [7] * 14)
    assert len(sessions_of(traffic)) == 1 and traffic.scheduler.stats().session_blocks == 3


def test_one_that_is_too_long_to_be_held_ends_no_other() -> None:
    traffic = Traffic(make(budget=64, blocks=100, max_len=400))
    sessions = sessions_of(traffic)
    for number, name in enumerate("abc"):
        turn(traffic, name, [number + 1] * 20)
    assert len(sessions) == 3
    turn(traffic, "a", [1] * 205)
    assert [name for _, name in sessions._open] == ["b", "c"] and sessions.given_up == 1
    turn(traffic, "d", [9] * 205)
    assert [name for _, name in sessions._open] == ["b", "c"] and sessions.given_up == 1


def test_sessions_end_by_time_by_name_and_with_a_reset() -> None:
    traffic = Traffic(make(cache=CacheSection(session_seconds=10), budget=100, blocks=100))
    sessions = sessions_of(traffic)
    for number, name in enumerate("abc"):
        traffic.scheduler.sharing.sessions.expire(float(number))
        turn(traffic, name, [number + 1] * 9)
    sessions.expire(10.0)
    assert len(sessions) == 3
    sessions.expire(10.5)
    assert len(sessions) == 2 and ("", "a") not in sessions and sessions.given_up == 1
    assert sessions.end(("", "b")) and not sessions.end(("", "b")) and sessions.given_up == 1
    traffic.scheduler.reset_prefix_cache()
    assert not len(sessions) and traffic.scheduler.stats().held_blocks == 0


def test_zero_seconds_hold_nothing() -> None:
    traffic = Traffic(make(cache=CacheSection(session_seconds=0), budget=100))
    turn(traffic, "s", FIRST)
    assert traffic.scheduler.stats().held_blocks == 0 == len(sessions_of(traffic))


def test_salts_have_sessions_of_their_own() -> None:
    traffic = Traffic(make(budget=100))
    turn(traffic, "s", FIRST, salt="one")
    turn(traffic, "s", FIRST, salt="other")
    assert len(sessions_of(traffic)) == 2 and traffic.scheduler.stats().session_blocks == 4


def test_sessions_hold_half_of_the_pool_and_the_oldest_goes_first() -> None:
    traffic = Traffic(make(budget=100, blocks=20, max_len=80))
    for number, name in enumerate("abcd"):
        turn(traffic, name, [number + 1] * 13)
    assert traffic.scheduler.stats().session_blocks == 9
    assert [("", name) in sessions_of(traffic) for name in "abcd"] == [False, True, True, True]
    turn(traffic, "b", [2] * 13)
    turn(traffic, "e", [9] * 13)
    assert [("", name) in sessions_of(traffic) for name in "bcde"] == [True, False, True, True]
    turn(traffic, "f", [7] * 60)
    assert ("", "f") not in sessions_of(traffic), "more than half of the pool is held by none"


def test_blocks_that_sessions_share_count_once() -> None:
    traffic = Traffic(make(budget=100, blocks=20, max_len=80))
    for name in "abcdefgh":
        turn(traffic, name, [1] * 33)
    assert len(sessions_of(traffic)) == 8 and traffic.scheduler.stats().session_blocks == 8


def test_a_session_makes_way_before_a_running_request_does() -> None:
    traffic = Traffic(make(budget=100, blocks=10, max_len=40))
    for name in "ab":
        turn(traffic, name, [ord(name)] * 9)
    traffic.add("long", [5] * 20, 20)
    traffic.run()
    assert traffic.scheduler.stats().preemptions_total == 0
    assert not len(sessions_of(traffic)), "ten blocks are needed"


def test_two_sessions_with_the_same_path_make_way_too() -> None:
    traffic = Traffic(make(budget=100, blocks=6, max_len=24))
    for name in "ab":
        turn(traffic, name, [1] * 13)
    assert traffic.scheduler.stats().session_blocks == 3
    traffic.add("whole", [5] * 21, 3)
    traffic.run()
    assert "whole" in traffic.over and not len(sessions_of(traffic))


def test_who_waits_is_let_in_by_sessions_only_where_nobody_runs() -> None:
    traffic = Traffic(make(budget=100, blocks=10, max_len=40))
    turn(traffic, "s", [1] * 17)
    traffic.add("runs", [5] * 4, 3)
    traffic.step()
    traffic.add("waits", [6] * 25, 2)
    assert admitted(traffic.step()) == {} and len(sessions_of(traffic)) == 1
    while "runs" in traffic.open:
        traffic.step()
    assert admitted(traffic.step()) == {"waits": 0} and not len(sessions_of(traffic))
    traffic.run()


def test_a_request_that_ends_midway_leaves_what_it_computed() -> None:
    traffic = Traffic(make(budget=8))
    traffic.add("turn", [1] * 30, 3, session="s")
    traffic.step()
    traffic.step()
    traffic.abort("turn")
    assert traffic.scheduler.stats().session_blocks == 16 // BLOCK
    traffic.add("turn", [1] * 30, 3, session="s")
    traffic.abort("turn")
    assert traffic.scheduler.stats().session_blocks == 16 // BLOCK, "who had not begun changes nothing"


def test_bad_blocks_are_held_for_nobody() -> None:
    traffic = Traffic(make(budget=100))
    traffic.add("turn", FIRST, 3, session="s")
    traffic.step(faulty=lambda sequence: True)
    assert traffic.open == {} and not len(sessions_of(traffic)) and traffic.scheduler.stats().held_blocks == 0
