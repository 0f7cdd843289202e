"""Random traffic with shared prefixes, forks, faults and preemptions on tiny pools: contents, books, and an end."""

import pytest
from hypothesis import settings
from tests.schedule.machine import SchedulerMachine

EVENTS = (
    "abort after a broken step", "abort, another answer", "abort, just admitted", "abort, running",
    "abort, swapped out", "abort, waiting", "ahead", "ahead, taken back", "ahead, trimmed", "broken step", "chunk",
    "copied", "copy", "disk hit", "evict", "fault", "fault again", "finish", "fork", "given back", "hit", "in flight",
    "late child", "load", "part", "preempt", "preempt during a step", "preempted from outside", "prefix hit", "save",
    "scrub", "series", "series cut short", "series over a border", "session", "session ended", "session given up",
    "session over", "slide", "spared", "stop during a step", "tail", "wait", "window hit",
)  # fmt: skip


FEW = 260  # examples, of which a random choice may lack the rarer events


def run_machine(examples: int) -> None:
    SchedulerMachine.seen.clear()
    machine = SchedulerMachine.TestCase
    machine.settings = settings(max_examples=examples, stateful_step_count=40, derandomize=examples <= FEW)
    machine().runTest()
    missing = [event for event in EVENTS if not SchedulerMachine.seen[event]]
    assert not missing, f"{missing} of {SchedulerMachine.seen}"


def test_any_traffic_reads_what_it_wrote_and_ends() -> None:
    run_machine(FEW)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_much_traffic_reads_what_it_wrote_and_ends() -> None:
    run_machine(1500)
