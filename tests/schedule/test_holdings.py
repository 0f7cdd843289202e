"""Who holds what: running and waiting requests, sessions, and slots as llama.cpp's server shows them."""

from typing import Any

from tests.schedule.traffic import BLOCK, Traffic, make, tiered

from pelton.core.config import CacheSection
from pelton.core.request import slot_of, slot_session
from pelton.schedule.scheduler import holdings_of

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
SWAP = CacheSection(partial_prefix_blocks=False, preemption_mode="swap")


def described(traffic: Traffic, most: int = 10, **how: bool) -> dict[str, Any]:
    return holdings_of(traffic.scheduler).describe(most, **how)


def test_names_of_slots() -> None:
    assert [slot_of(slot_session(number)) for number in (0, 7, 123456789)] == [0, 7, 123456789]
    for other in ("", "slot", "slot-", "slot-x", "slot-01", "slot--1", "7", "Slot-1", "slot-1 ", "slot-" + "9" * 10):
        assert slot_of(other) is None, other


def test_requests_with_what_they_hold_and_share() -> None:
    traffic = Traffic(make(rows=2, budget=100))
    traffic.add("first", PROMPT, 5)
    traffic.step()
    traffic.add("second", [*PROMPT, 10, 11], 5, session="mine")
    traffic.add("third", PROMPT, 5)
    traffic.step()
    told = described(traffic)
    first, second, third = told["requests"]
    assert (first["id"], first["state"], first["tokens"], first["prompt"]) == ("first", "running", 11, 9)
    assert first["computed"] == 10 and (first["blocks"], first["own"], first["shared"]) == (3, 1, 2)
    assert (second["id"], second["shared"], second["own"]) == ("second", 2, second["blocks"] - 2)
    assert third == {
        "id": "third",
        "state": "waiting",
        "blocks": 0,
        "own": 0,
        "shared": 0,
        "host_slots": 0,
        "tokens": 9,
        "computed": 0,
        "prompt": 9,
    }
    assert told["requests_left_out"] == 0 and told["held_for"] == []
    assert second["session"] != "mine" and described(traffic, names=True)["requests"][1]["session"] == "mine"
    few = described(traffic, 1)
    assert [one["id"] for one in few["requests"]] == ["first"] and few["requests_left_out"] == 2
    assert described(traffic, 0)["requests"] == []


def test_sessions_those_used_last_first() -> None:
    traffic = Traffic(make(budget=100))
    for name in ("one", slot_session(2), "three"):
        traffic.add("turn", [*PROMPT, len(name)], 1, session=name)
        traffic.run()
    told = described(traffic, 2)
    assert [one["tokens"] for one in told["held_for"]] == [8, 8] and told["held_for_left_out"] == 1
    assert [one["blocks"] for one in told["held_for"]] == [2, 2]
    assert told["held_for"][1]["session"] == "slot-2" and told["held_for"][0]["session"] != "three"
    assert described(traffic, 2, names=True)["held_for"][0]["session"] == "three"


def test_who_waits_in_host_memory() -> None:
    traffic = Traffic(tiered(make(rows=2, budget=100, blocks=8, max_len=32), 20, SWAP))
    traffic.add("first", [1] * 9, 20)
    traffic.add("second", [2] * 9, 20)
    while traffic.open and not traffic.scheduler.stats().swapped:
        traffic.step()
    waiting = next(one for one in described(traffic)["requests"] if one["state"] == "waiting")
    assert waiting["host_slots"] == traffic.scheduler.stats().host_slots_used > 0 == waiting["blocks"]
    traffic.run()


def test_slots_are_sessions_and_requests_that_name_none_come_last() -> None:
    traffic = Traffic(make(rows=4, budget=100))
    holdings = holdings_of(traffic.scheduler)
    traffic.add("turn", PROMPT, 1, session=slot_session(1))
    traffic.run()
    traffic.add("turn", PROMPT, 1, session=slot_session(1), salt="salt")
    traffic.run()
    traffic.add("turn", PROMPT, 1, session=slot_session(9))
    traffic.run()
    idle = holdings.slots(4, 99)
    assert [slot["id"] for slot in idle] == [0, 1, 2, 3] and {slot["n_ctx"] for slot in idle} == {99}
    assert [slot["n_held"] for slot in idle] == [0, 16, 0, 0] == [slot["n_prompt_tokens"] for slot in idle]
    assert not any(slot["is_processing"] for slot in idle)
    traffic.add("named", [*PROMPT, 10], 5, session=slot_session(1))
    traffic.add("again", [*PROMPT, 11], 5, session=slot_session(1))
    traffic.add("none", [7] * 9, 5)
    traffic.step()
    slots = holdings.slots(4, 99)
    assert [slot["request_id"] for slot in slots] == [None, "named", "none", "again"]
    assert [slot["is_processing"] for slot in slots] == [False, True, True, True]
    named = slots[1]
    assert (named["n_prompt_tokens"], named["n_prompt_tokens_processed"], named["n_held"]) == (11, 10, 16)
    assert holdings.request_of(("", "slot-1")) == "named" and holdings.request_of(("salt", "slot-1")) is None
    assert (holdings.tokens(("", "slot-1")), holdings.tokens(("", "slot-3"))) == (2 * BLOCK, 0)
    traffic.run()


def test_what_was_found_bad_is_held_for_nobody() -> None:
    traffic = Traffic(make(budget=100))
    traffic.add("turn", PROMPT, 1, session="s")
    traffic.run()
    blocks = holdings_of(traffic.scheduler).blocks
    assert blocks.tree is not None
    traffic.add("turn", PROMPT, 3)
    traffic.step()
    traffic.scheduler._blocks.poison([(0, traffic.scheduler.sharing.sessions.held(("", "s"))[0][0])])  # type: ignore[index]
    assert described(traffic)["held_for"][0]["tokens"] == 0 == holdings_of(traffic.scheduler).tokens(("", "s"))
