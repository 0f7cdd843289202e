"""Swap: preempted requests wait in host slots and go on where they were; which way is taken, and when not."""

import pytest
from tests.schedule.traffic import Traffic, make, tiered

from pelton.core.config import CacheSection
from pelton.core.plan import RowPlan, StateOp, StepPlan
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.kv.tiers.host import HostSlots
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tiers.swap import DISK_RATE, Rates


def traffic(slots: int, mode: str = "swap", **sizes: object) -> Traffic:
    """With no prefixes kept, unless `cache` says otherwise: so that all is to be loaded."""
    cache = sizes.pop("cache", CacheSection(enable_prefix_caching=False, preemption_mode=mode))
    made = tiered(make(**sizes), slots, cache)  # type: ignore[arg-type]
    return Traffic(made, tuple(group.window for group in made._blocks.groups))


def computed(made: Traffic) -> int:
    return made.scheduler.stats().computed_tokens_total


def test_a_request_goes_on_where_it_was() -> None:
    made = traffic(9)
    made.add("a", range(18), 4)
    made.step()
    made.step()
    before = computed(made)
    made.preempt("a")
    stats = made.scheduler.stats()
    assert (stats.swapped, stats.host_slots_used, stats.swaps_total) == (1, 5, 1)
    plan = made.step()
    assert plan is not None and [op.kind for op in plan.state_ops] == ["save"] * 5 + ["load"] * 5
    assert plan.admitted[0].cached == 18 and computed(made) == before + 1
    made.run()
    stats = made.scheduler.stats()
    assert (stats.swapped, stats.host_slots_used, stats.loaded_blocks_total) == (0, 0, 5)


def test_what_lies_behind_a_window_is_not_saved() -> None:
    made = traffic(9, windows=(None, 6))
    made.add("a", range(18), 4)
    made.step()
    made.step()
    made.preempt("a")
    plan = made.step()
    assert plan is not None
    saved = [op.group for op in plan.state_ops if op.kind == "save"]
    assert (saved.count(0), saved.count(1)) == (5, 2), "of the window the indices 13 to 17"
    assert made.run() and made.scheduler.stats().host_slots_used == 0


def test_shared_blocks_stay_in_the_tree_and_the_rest_is_loaded() -> None:
    cache = CacheSection(preemption_mode="swap")
    made = traffic(9, cache=cache, blocks=40)
    made.add("stays", [1] * 12 + [2], 30)
    made.step()
    made.add("goes", [1] * 12 + [3] * 5, 4)
    made.step()
    made.step()
    made.preempt("goes")
    assert made.scheduler.stats().host_slots_used == 2, "blocks 3 and 4: the others are in use by another"
    made.scheduler.reset_prefix_cache()
    plan = made.step()
    assert plan is not None
    assert [(op.kind, op.source) for op in plan.state_ops if op.kind == "load"] == [
        ("load", op.target) for op in plan.state_ops if op.kind == "save"
    ]
    made.run()
    assert made.scheduler.stats().swaps_lost_total == 0


def test_the_copied_start_of_a_block_is_saved_with_what_stands_behind_it() -> None:
    """Also while the step runs that copies it."""
    made = traffic(9, cache=CacheSection(preemption_mode="swap"))
    made.add("first", range(8), 1)
    made.run()
    made.add("next", [0, 1, 2, 3, 4, 5, 9], 6)
    plan = made.step(during=lambda: made.preempt("next"))
    assert plan is not None and plan.admitted[0].cached == 6
    plan = made.step()
    assert plan is not None and [op.kind for op in plan.state_ops] == ["save", "save", "load"]
    assert plan.admitted[0].cached == 6 and plan.admitted[0].lookup is None
    for _ in range(2):
        made.step()
    made.preempt("next")
    plan = made.step()
    assert plan is not None and plan.admitted[0].cached == 9
    made.run()
    assert made.scheduler.stats().host_slots_used == 0


def test_without_what_it_leaned_on_it_is_computed_again() -> None:
    made = traffic(9, cache=CacheSection(preemption_mode="swap"), blocks=40)
    made.add("leaves", [1] * 12 + [2], 30)
    made.step()
    made.add("goes", [1] * 12 + [3] * 5, 4)
    made.step()
    made.step()
    made.preempt("goes")
    made.abort("leaves")
    made.scheduler.reset_prefix_cache()
    plan = made.step()
    assert plan is not None and plan.admitted[0].cached == 0
    stats = made.scheduler.stats()
    assert (stats.swaps_lost_total, stats.host_slots_used, stats.loaded_blocks_total) == (1, 0, 0)
    made.run()


@pytest.mark.parametrize("slots", [0, 3])
def test_without_room_it_is_computed_again(slots: int) -> None:
    made = traffic(slots)
    made.add("a", range(18), 4)
    made.step()
    made.preempt("a")
    stats = made.scheduler.stats()
    assert (stats.swaps_total, stats.preemptions_total, stats.host_slots_used) == (0, 1, 0)
    plan = made.step()
    assert plan is not None and plan.admitted[0].cached == 0 and not plan.state_ops
    made.run()


def test_an_aborted_request_gives_its_slots_back_and_is_not_saved() -> None:
    made = traffic(9)
    made.add("a", range(18), 4)
    made.add("b", range(6), 9)
    made.step()
    made.step()
    made.preempt("a")
    made.abort("a")
    plan = made.step()
    assert plan is not None and not plan.state_ops and made.scheduler.stats().host_slots_used == 0
    made.run()


def test_what_a_broken_step_was_to_save_is_not_used() -> None:
    made = traffic(9)
    made.add("a", range(18), 4)
    made.step()
    made.step()
    made.preempt("a")
    made.break_step()
    assert made.scheduler.stats().swaps_total == 1
    plan = made.step()
    assert plan is not None and plan.admitted[0].cached == 0, "it ran in the step that broke"
    assert made.scheduler.stats().host_slots_used == 0
    made.run()


def test_what_a_step_saves_is_not_there_if_it_broke_before() -> None:
    """Who lost its blocks for the very step that breaks is computed again, and the others too."""

    def crowd(steps: int) -> Traffic:
        made = traffic(60, rows=4, blocks=14, budget=16)
        for number in range(4):
            made.add(f"r{number}", [number] * 7, 18, seed=number)
        for _ in range(steps):
            made.step()
        return made

    steps = next(steps for steps in range(30) if crowd(steps).seen["preempt"])
    assert crowd(steps).scheduler.stats().swapped == 1
    made = crowd(steps - 1)
    made.break_step(ops=0)
    assert made.seen["save"] > 0 and made.scheduler.stats().swapped == 1
    made.step()
    assert made.scheduler.stats().swapped == 0
    made.run()


def test_a_fault_is_never_saved() -> None:
    made = traffic(9, cache=CacheSection(preemption_mode="swap"))
    made.add("first", [1] * 8 + [2], 1)
    made.run()
    made.add("second", [1] * 8 + [3], 3)
    made.step(faulty=lambda sequence: not sequence.private)
    assert made.seen["fault again"] == 1 and made.scheduler.stats().host_slots_used == 0
    made.run()
    assert "second" in made.over


def rated(prefill: float, copy: float) -> Scheduler:
    """In mode auto, on a machine of such speeds, with blocks of 1000 bytes."""
    scheduler = tiered(make(), 9, block_bytes=1000)
    scheduler.tiers.rates.prefill, scheduler.tiers.rates.copy = prefill, copy
    return scheduler


@pytest.mark.parametrize(
    ("prefill", "copy", "swaps"),
    [
        (1000.0, 1e6, 1),  # 10 ms there and back, 17 ms to compute
        (1000.0, 5e5, 0),  # 20 ms
        (2000.0, 1e6, 0),  # 8.5 ms
        (0.0, 1.0, 1),  # not known yet
    ],
)
def test_the_way_that_takes_less_time_is_taken(prefill: float, copy: float, swaps: int) -> None:
    """17 tokens in 5 blocks of 1000 bytes."""
    made = Traffic(rated(prefill, copy))
    made.add("a", range(16), 4)
    made.step()
    made.step()
    made.preempt("a")
    assert made.scheduler.stats().swaps_total == swaps
    made.run()


def test_speeds_are_learned_from_steps() -> None:
    rates = Rates([KVGroup(BlockPool(9), None, 9, 1000)])
    first = rates.copy
    prompt = RowPlan(0, 0, 100)
    rates.saw(StepPlan((prompt,)), 0.5, 0.0)
    assert rates.prefill == 200.0 and rates.copy == first
    rates.saw(StepPlan((prompt,), state_ops=(StateOp("save", 1, 0), StateOp("copy", 1, 2))), 0.6, 0.1)
    assert rates.prefill == 200.0, "without the time for copying"
    assert rates.copy == pytest.approx(0.7 * first + 0.3 * 1e4)
    rates.saw(StepPlan((RowPlan(0, 100, 1),)), 9.0, 0.0)
    assert rates.prefill == 200.0, "a decoding step says nothing"
    rates.saw(StepPlan((prompt,)), 1.0, 0.0)
    assert rates.prefill == pytest.approx(170.0)


def test_under_pressure_nothing_is_computed_twice() -> None:
    """Oversubscribed by far, with room to wait for all."""
    made = traffic(200, rows=4, blocks=14, budget=16)
    for number in range(12):
        made.add(f"r{number}", [number % 3] * (5 + number), 18, seed=number)
    made.run()
    stats = made.scheduler.stats()
    assert stats.swaps_total == stats.preemptions_total > 3
    total = sum(len(sequence.tokens) - 1 for sequence in made.over.values())
    assert stats.computed_tokens_total == total and stats.host_slots_used == 0


def test_slots_are_counted() -> None:
    host = HostSlots((3, 1))
    held = host.alloc((2, 1))
    assert held == ((0, 1), (0,)) and host.alloc((0, 1)) is None and host.free == (1, 0) and host.used == 3
    host.check((group, slot) for group, slots in enumerate(held) for slot in slots)
    with pytest.raises(AssertionError, match="nobody has"):
        host.check(())
    host.release(held)
    with pytest.raises(AssertionError, match="twice"):
        host.check(((0, 1),))
    host.check(())


def test_the_rate_of_files_is_learned_from_reads() -> None:
    rates = Rates([KVGroup(BlockPool(9), None, 9, 1000), KVGroup(BlockPool(9), None, 9, 10)])
    assert rates.bytes([0, 1, 1]) == 1020 and rates.disk == DISK_RATE
    rates.read(5000, 0.5)
    assert rates.disk == pytest.approx(0.7 * DISK_RATE + 0.3 * 1e4)
    before = rates.disk
    rates.read(0, 1.0)
    rates.read(1000, 0.0)
    assert rates.disk == before, "nothing was read, or nobody measured it"
    rates.learns = False
    rates.read(1000, 1.0)
    assert rates.disk == before


@pytest.mark.parametrize(("limit", "waits"), [(0, 0), (499, 0), (500, 1), (999, 1), (1000, 2), (None, 2)])
def test_no_more_is_swapped_than_swap_space_has_room_for(limit: int | None, waits: int) -> None:
    """Also where there are more slots, since files need them: here 40, of 100 bytes."""
    cache = CacheSection(enable_prefix_caching=False, preemption_mode="swap", swap_space_bytes=limit)
    scheduler = tiered(make(budget=40), 40, cache, block_bytes=100)
    made = Traffic(scheduler)
    for name in "ab":
        made.add(name, range(18), 4)
    made.step()
    made.step()
    for name in "ba":
        made.preempt(name)
    stats = made.scheduler.stats()
    assert (stats.swapped, stats.host_slots_used) == (waits, 5 * waits)
    made.run()
    assert made.scheduler.stats().host_slots_used == 0
