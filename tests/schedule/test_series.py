"""Series: when a step becomes several, how many, and what keeps it at one."""

import pytest
from tests.schedule.traffic import BLOCK, Traffic, in_series, make

from pelton.core.config import CacheSection, ScheduleSection
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.schedule.orders.fcfs import FirstComeFirstServed
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.series import CALL_SECONDS, KEPT


def decoding(scheduler: Scheduler, requests: int = 2, room: int = 100, **kind: int | None) -> Traffic:
    """Requests whose first token is drawn."""
    traffic = Traffic(scheduler)
    for number in range(requests):
        traffic.add(f"r{number}", [number] * (5 + number), room, **{"settles": 0, **kind})  # type: ignore[arg-type]
    plan = traffic.step()
    assert plan is not None and plan.repeat == 1
    return traffic


def repeats(traffic: Traffic, calls: int = 3) -> list[int]:
    plans = [traffic.step() for _ in range(calls)]
    return [plan.repeat for plan in plans if plan is not None]


def test_all_that_decode_go_on_together() -> None:
    assert repeats(decoding(in_series(make(), 8))) == [8, 8, 8]
    assert repeats(decoding(in_series(make(), 3))) == [3, 3, 3]
    assert repeats(decoding(in_series(make(), 1))) == [1, 1, 1]


@pytest.mark.parametrize(("room", "found"), [(10, [8, 1]), (12, [8, 3]), (2, [1]), (3, [2])])
def test_nobody_ends_by_number_in_the_midst(room: int, found: list[int]) -> None:
    assert repeats(decoding(in_series(make(), 8), room=room), calls=4)[: len(found)] == found


def test_max_len_is_an_end_too() -> None:
    traffic = decoding(in_series(make(max_len=12), 8), requests=1)
    assert repeats(traffic, calls=2) == [6] and not traffic.open


@pytest.mark.parametrize(("settles", "found"), [(None, [1, 1, 1]), (3, [1, 1, 8]), (1, [8, 8, 8])])
def test_who_needs_a_decision_gets_one(settles: int | None, found: list[int]) -> None:
    assert repeats(decoding(in_series(make(), 8), settles=settles)) == found


def test_a_prompt_beside_them_keeps_all_to_one_step() -> None:
    traffic = decoding(in_series(make(budget=8), 8), requests=1)
    traffic.add("long", range(40), 5, settles=0)
    assert repeats(traffic, calls=7) == [1] * 6 + [4]


def test_who_waits_for_a_row_is_not_delayed_by_a_series() -> None:
    """It gets one only when somebody is over, and a series is over then too."""
    traffic = decoding(in_series(make(rows=2), 8), room=9)
    traffic.add("next", range(6), 4, settles=0)
    assert repeats(traffic, calls=1) == [8]
    assert traffic.step().admitted  # type: ignore[union-attr]


def test_who_waits_for_anothers_prompt_is_not_delayed() -> None:
    """Its turn comes with the step that computes the block it waits for."""
    traffic = decoding(in_series(make(rows=4), 8), requests=1, room=40)
    known = traffic.open["r0"].tokens
    traffic.step(most=2)
    assert len(known) == 8 == 2 * BLOCK
    traffic.add("same", [*known, 7], 4, settles=0)
    assert repeats(traffic, calls=1) == [1]


def test_blocks_are_there_for_all_of_it() -> None:
    """Six blocks: the prompts take two each; a series as long as the rest allows, then none."""
    traffic = decoding(in_series(make(blocks=6), 8))
    assert repeats(traffic, calls=1) == [6]
    traffic.run()
    assert traffic.seen["preempt"] > 0


def test_as_many_steps_as_fit_into_the_time() -> None:
    scheduler = in_series(make(), 8)
    scheduler.series.seconds = CALL_SECONDS
    traffic = decoding(scheduler)
    assert repeats(traffic) == [1, 1, 1], "no time is known yet"
    scheduler.series.saw(1, 1, 1e-6)
    assert repeats(traffic, calls=1) == [1], "not of so many rows"
    scheduler.series.saw(3, 2, 2 * CALL_SECONDS / 4)
    assert repeats(traffic, calls=1) == [4]
    scheduler.series.saw(2, 1, CALL_SECONDS)
    mean = (KEPT / 4 + (1 - KEPT)) * CALL_SECONDS
    assert repeats(traffic, calls=1) == [int(CALL_SECONDS / mean)] == [2]
    scheduler.series.saw(2, 1, 100.0)
    assert repeats(traffic, calls=1) == [1]


def test_blocks_of_every_group_are_there_for_all_of_it() -> None:
    """The group with the fewest decides."""
    limits = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=16, max_steps_per_call=8)
    groups = [KVGroup(BlockPool(101)), KVGroup(BlockPool(7))]
    scheduler = Scheduler(limits, CacheSection(), FirstComeFirstServed(), groups, BLOCK, 1000)
    scheduler.series.seconds = float("inf")
    traffic = Traffic(scheduler, (None, None))
    for number in range(2):
        traffic.add(f"r{number}", [number] * (5 + number), 100, settles=0)
    plan = traffic.step()
    assert plan is not None and plan.repeat == 1
    assert repeats(traffic, calls=1) == [6]
