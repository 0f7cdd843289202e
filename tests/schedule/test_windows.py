"""Windows in the scheduler: what is kept of a prefix, how many are let in, forks and faults beside freed blocks."""

import pytest
from tests.schedule.traffic import BLOCK, Traffic, make

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.plan import StepPlan
from pelton.kv.group import KVGroup, most_blocks
from pelton.kv.pool import BlockPool
from pelton.schedule.orders.fcfs import FirstComeFirstServed
from pelton.schedule.scheduler import Scheduler

WINDOW = 8


def hits(traffic: Traffic, name: str, prompt: list[int]) -> int:
    before = traffic.scheduler.stats().prefix_hits_total
    traffic.add(name, prompt, 2)
    traffic.run()
    return traffic.scheduler.stats().prefix_hits_total - before


@pytest.mark.parametrize("windows", [(WINDOW,), (WINDOW, None)])
def test_a_long_request_does_not_wipe_out_what_ends_a_prefix(windows: tuple[int | None, ...]) -> None:
    """What slid out of its own window goes first: nobody begins in its midst."""
    system = [1] * 40
    groups = [KVGroup(BlockPool(200 if window is None else 40), window) for window in windows]
    limits = ScheduleSection(max_num_seqs=2, max_num_batched_tokens=16)
    traffic = Traffic(Scheduler(limits, CacheSection(), FirstComeFirstServed(), groups, BLOCK, 400), windows)
    assert [hits(traffic, f"before {n}", [*system, 10 + n, *[3] * 11]) for n in range(3)] == [0, 40, 40]
    evictions = traffic.scheduler.stats().prefix_evictions_total
    assert hits(traffic, "long", [5 + n % 3 for n in range(200)]) == 0
    assert traffic.scheduler.stats().prefix_evictions_total > evictions, "else nothing had to go"
    assert hits(traffic, "after", [*system, 50, *[3] * 11]) == 40
    assert hits(traffic, "other", [9] * 60) == 0
    assert hits(traffic, "again", [*system, 51, *[3] * 11]) == 40, "who slid past what it had found leaves it behind"


@pytest.mark.parametrize("common", [0, 24])
def test_who_shares_blocks_of_a_window_is_promised_its_own_too(common: int) -> None:
    """While others still hold what they share, each that has passed it needs as many again. Nobody is preempted."""
    windows = (16, None)
    groups = [KVGroup(BlockPool(25), 16), KVGroup(BlockPool(400), None)]
    limits = ScheduleSection(max_num_seqs=8, max_num_batched_tokens=16, long_prefill_token_threshold=2)
    scheduler = Scheduler(limits, CacheSection(), FirstComeFirstServed(), groups, BLOCK, 400)
    traffic = Traffic(scheduler, windows)
    for number in range(8):
        start = [1] * common or [number + 10] * 4
        traffic.add(f"r{number}", [*start, *([number + 20] * 40)], 4)
    traffic.run()
    assert scheduler.stats().preemptions_total == 0 and len(traffic.over) == 8


@pytest.mark.parametrize("spare", range(5))
@pytest.mark.parametrize("windows", [(16,), (16, 12)])
def test_what_is_found_is_no_need_beside_a_window(windows: tuple[int, ...], spare: int) -> None:
    """Where the pool holds the longest request, it holds one that begins with a cached prefix."""
    least = most_blocks(16, 200, 8, BLOCK)
    traffic = Traffic(make(budget=8, blocks=least + spare, max_len=200, windows=windows), windows)
    common = [number % 7 for number in range(40)]
    assert hits(traffic, "first", common) == 0
    assert hits(traffic, "second", [*common, *[3] * 60]) >= 36


def test_as_many_are_let_in_as_windows_have_room_for() -> None:
    """Each needs blocks for its window and a step of 4 tokens, however long it is, and one in reserve."""
    most = most_blocks(WINDOW, 50, 4, BLOCK)
    assert most == 4
    scheduler = make(rows=9, budget=64, blocks=3 * most + 3, max_len=400, cap=4, windows=(WINDOW,))
    traffic = Traffic(scheduler, (WINDOW,))
    for number in range(9):
        traffic.add(f"r{number}", [number] * 50, 2)
    traffic.step()
    traffic.step()
    assert scheduler.num_running == 3
    traffic.run()
    assert scheduler.stats().preemptions_total == 0


@pytest.mark.parametrize(
    ("windows", "blocks", "longest"),
    [((None,), 10, 40), ((WINDOW,), 10, 1000), ((WINDOW,), 5, 20), ((WINDOW, None), 10, 40), ((None, WINDOW), 10, 40)],
)
def test_the_longest_request_is_what_each_group_holds(
    windows: tuple[int | None, ...], blocks: int, longest: int
) -> None:
    """A step of 16 tokens and a window of 8 take up to 7 blocks; with fewer a window is no different from none."""
    assert most_blocks(WINDOW, 1000, 16, BLOCK) == 7
    assert make(budget=16, blocks=blocks, max_len=1000, windows=windows).max_len == longest


@pytest.mark.parametrize("windows", [(WINDOW, None), (None, WINDOW), (WINDOW,)])
@pytest.mark.parametrize("prompt", [9, 12, 13, 21, 29])
def test_forks_begin_with_what_the_window_shows(windows: tuple[int | None, ...], prompt: int) -> None:
    traffic = Traffic(make(rows=4, budget=64, windows=windows), windows)
    for child in range(3):
        parent = {"parent": "r"} if child else {}
        traffic.add(f"r/{child}" if child else "r", [1] * prompt, 6, seed=child, **parent)
    traffic.run()
    assert traffic.computed == prompt + 2 + 3 * 5, "the others compute the prompt's last token"


@pytest.mark.parametrize("windows", [(WINDOW, None), (WINDOW,)])
def test_a_child_that_comes_late_computes_the_prompt_itself(windows: tuple[int | None, ...]) -> None:
    traffic = Traffic(
        make(rows=4, budget=64, cache=CacheSection(enable_prefix_caching=False), windows=windows), windows
    )
    traffic.add("r", [1] * 10, 40)
    for _ in range(20):
        traffic.step()
    traffic.add("r/1", [1] * 10, 3, seed=1, parent="r")
    plan = traffic.step()
    assert plan is not None and [one.cached for one in plan.admitted] == [0]
    traffic.run()


def stepped(traffic: Traffic, steps: int) -> StepPlan | None:
    plan = None
    for _ in range(steps):
        plan = traffic.step()
    return plan


@pytest.mark.parametrize("windows", [(WINDOW, None), (None, WINDOW), (WINDOW,)])
def test_nothing_of_a_faulty_request_is_found_behind_its_window_either(windows: tuple[int | None, ...]) -> None:
    """What slid out of its window before the fault was seen is dropped with the rest."""
    traffic = Traffic(make(budget=8, windows=windows), windows)
    traffic.add("bad", [1] * 40, 4)
    while traffic.open:
        traffic.step(faulty=lambda sequence: True)
    assert traffic.seen["fault"] == 1 and traffic.scheduler.stats().cached_blocks == 0
    traffic.add("next", [1] * 40, 4)
    plan = stepped(traffic, 1)
    assert plan is not None and [one.cached for one in plan.admitted] == [0]
    traffic.run()


@pytest.mark.parametrize("windows", [(WINDOW, None), (None, WINDOW), (WINDOW,)])
def test_a_reader_whose_window_has_passed_what_was_bad_is_computed_again(windows: tuple[int | None, ...]) -> None:
    traffic = Traffic(make(budget=100, windows=windows), windows)
    traffic.add("first", [1] * 20, 1)
    traffic.run()
    traffic.add("second", [1] * 30, 4)
    traffic.step(faulty=lambda sequence: True)
    assert traffic.seen["fault again"] == 1
    plan = traffic.step()
    assert plan is not None and [one.cached for one in plan.admitted] == [0]
    traffic.run()
    traffic.add("third", [1] * 20, 1)
    plan = traffic.step()
    # Alone it went well, so what it had read was bad: all of the first's blocks, or those that its window showed.
    assert plan is not None and [one.cached for one in plan.admitted] == [0 if None in windows else 12]


@pytest.mark.parametrize("windows", [(WINDOW, None), (None, WINDOW)])
def test_a_step_that_broke_is_forgotten_in_all_groups(windows: tuple[int | None, ...]) -> None:
    traffic = Traffic(make(budget=100, windows=windows), windows)
    for child in range(2):
        parent = {"parent": "r"} if child else {}
        traffic.add(f"r/{child}" if child else "r", [1] * 22, 6, seed=child, **parent)
    traffic.step()
    traffic.break_step(rows=0)
    scrubbed = {(op.group, op.target) for op in (traffic.step() or StepPlan(())).state_ops if op.kind == "scrub"}
    assert {group for group, _ in scrubbed} == {0, 1}
    traffic.run()
