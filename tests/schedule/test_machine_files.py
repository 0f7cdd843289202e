"""The same traffic in two processes that share files on a disk that fails, with allocations refused, kills and starts.

What a block holds is known of blocks, host slots and files (`Traffic`, `Ledger`), so a wrong one that is used is seen.
"""

import logging
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.schedule.disk import FAULTS, SPOILS, FaultyDisk, Ledger, PacedWorker, Watched, spoil
from tests.schedule.machine import (
    BASES,
    MAX_LEN,
    WINDOWS,
    SchedulerMachine,
    count_all,
    count_given_back,
    end_sessions,
    state_of,
)
from tests.schedule.refusals import Refusals
from tests.schedule.traffic import BLOCK, HostMemory, Traffic, in_series, make, tiered

from pelton.core.config import CacheSection
from pelton.kv.group import Held
from pelton.schedule import ORDERS

NEEDED = -(-MAX_LEN // BLOCK)  # blocks of the longest request
DEAD = 1 << 30  # the number of no process
SLOW, SLOWER = 2, 8  # times that a reader has nothing, the second beyond what is waited for
QUIET_STEPS = 30  # after which most requests are over
ROOMY, TIGHT = 1 << 20, 2500  # bytes of files


@dataclass
class Process:
    """An engine without a model. `taken`: blocks that somebody outside of it holds."""

    traffic: Traffic
    files: Watched
    worker: PacedWorker
    refusals: Refusals
    taken: list[Held] = field(default_factory=list)

    def check(self) -> None:
        """Asserts what holds after each step, whether or not the process had a part in it."""
        scheduler = self.traffic.scheduler
        scheduler.check()
        self.files.check()
        stats = scheduler.stats()
        loaded = stats.loaded_blocks_total + stats.disk_loaded_total
        assert loaded == self.traffic.seen["load"], f"{loaded} blocks counted as loaded, not {self.traffic.seen}"

    def count(self, seen: Counter[str]) -> None:
        """What happened in it."""
        count_all(self.traffic, seen)
        seen["files deleted for room"] += int(self.files.counters.get("kv_disk_deleted"))

    def drain(self) -> None:
        """All requests end; then no slot is held, whatever failed before."""
        self.worker.holds = 0
        self.traffic.run()
        # What was given up by the last step is saved by one more, which gives up nothing.
        self.traffic.add("the end", [0], 1, shared=False)
        self.traffic.run()
        self.traffic.scheduler.tiers.collect()
        self.check()
        used = self.traffic.scheduler.stats().host_slots_used
        assert not used, f"{used} slots are held by nobody"


@dataclass(frozen=True)
class Setting:
    """Sizes of both processes, as in `make` and `tiered`; `steps` of a call, `room` bytes of files."""

    blocks: int
    budget: int
    cap: int
    order: str
    windows: tuple[int | None, ...]
    steps: int
    slots: int
    cache: CacheSection
    room: int

    def traffic(self, worker: PacedWorker, host: HostMemory) -> Traffic:
        made = make(
            4, self.budget, self.blocks, MAX_LEN, self.cap, order=ORDERS.get(self.order)(), windows=self.windows
        )
        return Traffic(in_series(tiered(made, self.slots, self.cache, worker), self.steps), self.windows, host)


class FilesMachine(SchedulerMachine):
    """`traffic` is that of one of `processes`: what is done, is done by it."""

    seen: Counter[str] = Counter()

    @initialize(
        blocks=st.sampled_from((8, 10, 24)),
        budget=st.sampled_from((5, 9, 40)),
        order=st.sampled_from(ORDERS.names()),
        most=st.sampled_from((None, None, 0, 12)),
        mode=st.sampled_from(("auto", "swap", "recompute")),
        shape=st.tuples(st.sampled_from(WINDOWS), st.sampled_from((1, 3, 8)), st.sampled_from((True, True, False))),
        room=st.tuples(st.sampled_from((6, 6, 30, 60)), st.sampled_from((ROOMY, TIGHT))),
    )
    def begin(  # type: ignore[override]
        self,
        blocks: int,
        budget: int,
        order: str,
        most: int | None,
        mode: str,
        shape: tuple[tuple[int | None, ...], int, bool],
        room: tuple[int, int],
    ) -> None:
        """`shape` as for SchedulerMachine; `room`: host slots of each group, and bytes of files."""
        windows, steps, parts = shape
        cache = CacheSection(prefix_cache_tokens=most, partial_prefix_blocks=parts, preemption_mode=mode)
        self.setting = Setting(blocks, budget, 0, order, windows, steps, room[0], cache, room[1])
        self.caching = self.filed = True
        self.number, self.now, self.place = 0, 0.0, 0
        self.folder, self.ledger, self.paths = Path(mkdtemp()), Ledger(), dict[tuple[object, int], int]()
        self.disk = FaultyDisk(self.seen)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("pelton.kv.tiers.files.os", self.disk)
        self.processes = [self.start(), self.start()]
        self.traffic = self.processes[0].traffic

    def start(self) -> Process:
        """A process begins; what a place of a block holds means the same in all of them."""
        host = HostMemory()
        files = Watched(self.folder, self.setting.room, self.disk, self.ledger, self.seen)
        worker = PacedWorker(files, host.slot, self.seen)
        traffic = self.setting.traffic(worker, host)
        traffic._paths = self.paths
        count_given_back(traffic, self.seen)
        return Process(traffic, files, worker, Refusals(traffic, self.seen))

    @rule()
    def other_process(self) -> None:
        self.place = 1 - self.place
        self.traffic = self.processes[self.place].traffic

    @rule(kill=st.booleans(), chance=st.integers(0, 3))
    def restart(self, kill: bool, chance: int) -> None:
        """The process ends, in the midst of anything or after it has written what it has; another begins."""
        if chance:
            return
        process = self.processes[self.place]
        offload = process.traffic.scheduler.tiers.offload
        assert offload is not None
        half = process.files.folder / f"{'0' * 64}.0.kv.{DEAD}.part"
        if kill:
            process.worker.kill()
            if process.files.folder.exists():
                half.write_bytes(b"half of it")
        else:
            process.worker.close()
            for block, number in list(offload.kept()):
                held = process.traffic._memory[block.name.group, number]
                self.seen["kept at the end"] += process.files.write(block, memoryview(array("q", held).tobytes()))
        process.files.check()
        process.count(self.seen)
        self.seen["killed" if kill else "ended"] += 1
        self.processes[self.place] = self.start()
        self.traffic = self.processes[self.place].traffic
        assert not half.exists(), "what was half written is still there"

    @rule(fault=st.sampled_from(FAULTS), times=st.integers(1, 12))
    def disk_fails(self, fault: str, times: int) -> None:
        self.disk.fault, self.disk.left = fault, times

    @rule(calls=st.integers(1, 8))
    def disk_is_slow(self, calls: int) -> None:
        self.processes[self.place].worker.holds = calls

    @rule(
        base=st.sampled_from(BASES),
        length=st.integers(9, 24),
        fault=st.sampled_from(("", "", *FAULTS)),
        times=st.integers(1, 12),
        calls=st.sampled_from((0, 0, SLOW, SLOWER)),
        other=st.booleans(),
        gone=st.booleans(),
    )
    def there_and_back(
        self, base: list[int], length: int, fault: str, times: int, calls: int, other: bool, gone: bool
    ) -> None:
        """What is cached goes to files, and is asked for, perhaps by the `other` process, who may be `gone` soon."""
        for _ in range(QUIET_STEPS):
            if self.traffic.open:
                self.step(-1, 8)
        self.disk_fails(fault, times)
        self.push_out()
        self.add(base, 1, [], 4, 1, 1, "", (0, None))
        self.several_steps(8)
        if other:
            self.other_process()
        self.disk_is_slow(calls)
        if calls == SLOW:  # and others go on meanwhile
            self.add(base, 2, [], 6, 1, 1, "", (0, None))
        self.add(base, length, [], 3, 1, 1, "", (0, None))
        name = f"r{self.number}"
        self.step(-1, 8)
        if gone and name in self.traffic.open:
            self.seen[f"abort, {state_of(self.traffic, name)}"] += 1
            self.traffic.abort(name)

    @rule(kind=st.sampled_from(SPOILS), place=st.integers(-60, 220), every=st.sampled_from((1, 2, 5)))
    def files_are_spoilt(self, kind: str, place: int, every: int) -> None:
        paths = sorted(self.folder.rglob("*.kv"))
        for number, path in enumerate(paths[::every]):
            spoil(path, kind, place + number, paths[-1])
            self.seen[f"spoilt: {kind}"] += 1
            if path.exists():
                self.disk.utime(path)

    @rule(blocks=st.integers(0, 2), slots=st.integers(0, 3))
    def refuse(self, blocks: int, slots: int) -> None:
        refusals = self.processes[self.place].refusals
        refusals.blocks, refusals.slots = blocks, slots

    @rule(count=st.integers(1, 12))
    def take_blocks(self, count: int) -> None:
        """As many as there are, but for what the longest request needs, are no longer the scheduler's to hand out."""
        process, outside = self.processes[self.place], self.traffic.outside
        blocks = self.traffic.scheduler._blocks
        count = min(count, self.setting.blocks - NEEDED - len(outside) // len(blocks.groups), *blocks.available)
        if count < 1:
            return
        held = blocks.alloc(count)
        assert held is not None
        blocks._poisoned.update(blocks.take_scrubs())  # nobody uses them now
        process.taken.append(held)
        outside += [(group, block) for group, own in enumerate(held) for block in own]
        self.seen["blocks taken"] += 1

    @precondition(lambda self: self.processes[self.place].taken)
    @rule()
    def bring_blocks_back(self) -> None:
        held = self.processes[self.place].taken.pop()
        self.traffic.scheduler._blocks.release(held)
        for group, own in enumerate(held):
            for block in own:
                self.traffic.outside.remove((group, block))

    @invariant()
    def both_add_up(self) -> None:
        for process in self.processes:
            process.check()

    def teardown(self) -> None:
        """All end, with whatever is still refused and held; not after a failed rule."""
        if not hasattr(self, "processes"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.disk.left = 0
                for process in self.processes:
                    self.traffic = process.traffic
                    process.drain()
                    self.adds_up()
                    end_sessions(process.traffic, self.now, self.seen)
                    process.count(self.seen)
        finally:
            for process in self.processes:
                process.worker.kill()
            self.patch.undo()
            rmtree(self.folder)


EVENTS = (
    "abort, another answer", "abort, just admitted", "abort, running", "abort, swapped out", "abort, waiting",
    "abort, waiting for files", "abort after a broken step",
    "allocation failed", "allocation refused", "answered too late", "blocks taken", "broken step", "copy",
    "disk given up", "disk hit", "disk: cut", "disk: error", "disk: flipped", "disk: full", "disk: short", "ended",
    "evict", "fault", "fault again", "files deleted for room", "finish", "given back", "held back", "in flight",
    "kept at the end", "killed", "killed with jobs to do", "load", "no slots left", "not there any more", "part",
    "preempt", "preempt during a step", "preempted from outside", "read what another wrote", "reader before writers",
    "save", "scrub", "series",
    "session", "session over", "slide", "slots refused", "spoilt file refused", "spoilt: another's", "spoilt: cut",
    "spoilt: delete", "spoilt: empty", "spoilt: flip", "spoilt: grow", "waits given up", "window hit",
)  # fmt: skip
FEW = 400  # examples, of which a random choice may lack the rarer events


def run_machine(examples: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pelton")  # each failure of the disk is told
    FilesMachine.seen.clear()
    machine = FilesMachine.TestCase
    machine.settings = settings(max_examples=examples, stateful_step_count=50, derandomize=examples <= FEW)
    machine().runTest()
    print(FilesMachine.seen)
    missing = [event for event in EVENTS if not FilesMachine.seen[event]]
    assert not missing, f"{missing} of {FilesMachine.seen}"


@pytest.mark.timeout(300)
def test_no_fault_makes_a_wrong_block_be_used_or_one_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    run_machine(FEW, caplog)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_fault_in_many_runs_makes_a_wrong_block_be_used_or_one_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    run_machine(1500, caplog)
