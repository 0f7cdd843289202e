"""Carriers of blocks between host slots and files: a thread, and one that works when it is asked what is done.

They decide nothing. Invariant: jobs are done one after the other, in the order in which they were started.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pelton.core.clock import Clock, SystemClock
from pelton.kv.tiers.chain import Labelled, Name
from pelton.kv.tiers.files import BlockFiles, Buffer

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Blocks, and the slot of each (in its group). `read`: from files into slots; else the other way round."""

    read: bool
    blocks: tuple[Labelled, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A job that is over, and how each of its blocks went; `seconds` that it took, 0 where nobody measures that."""

    job: Job
    good: tuple[bool, ...]
    seconds: float = 0.0


class Carrier(Protocol):
    """Who carries blocks between host slots and `files`, in the order in which it was told to."""

    files: BlockFiles

    def has(self, name: Name) -> bool:
        """Whether a read that is asked for now may find a block."""
        ...

    def start(self, job: Job) -> None:
        """Behind all that was started before. What is in the slots is the carrier's until the job is told as done."""
        ...

    def call(self, work: Callable[[], object]) -> None:
        """Runs something on the files, in turn."""
        ...

    def done(self, seconds: float = 0.0) -> list[Done]:
        """Jobs that are over since the last call; waits so long for one where there is none."""
        ...

    def close(self) -> None:
        """Jobs that were started are finished; then it is over. Twice is no error."""
        ...


class DiskWorker:
    """A Carrier with a thread. `slot(group, slot)`: the memory of a host slot. `clock`: by which jobs are timed."""

    def __init__(self, files: BlockFiles, slot: Callable[[int, int], Buffer], clock: Clock | None = None) -> None:
        self.files = files
        self._slot = slot
        self._clock = clock or SystemClock()
        self._jobs: queue.SimpleQueue[Job | Callable[[], object] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._waits_for: set[Name] = set()  # to be written
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pelton-kv-disk", daemon=True)
        self._thread.start()

    def has(self, name: Name) -> bool:
        """Whether a read that is asked for now may find a block."""
        return name in self._waits_for or self.files.has(name)

    def start(self, job: Job) -> None:
        """Behind all that was started before."""
        if not job.read:
            self._waits_for.update(block.name for block in job.blocks)
        self._jobs.put(job)

    def call(self, work: Callable[[], object]) -> None:
        """Runs something on the files, in turn."""
        self._jobs.put(work)

    def done(self, seconds: float = 0.0) -> list[Done]:
        """Jobs that are over since the last call; waits so long for one where there is none."""
        found: list[Done] = []
        try:
            if seconds:
                found.append(self._done.get(timeout=seconds))
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            return found

    def close(self) -> None:
        """Jobs that were started are finished; then it is over. Twice is no error."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()
            self._slot = _gone

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Job):
                began = self._clock.now()
                good = [self._carry(job.read, *pair) for pair in zip(job.blocks, job.slots, strict=True)]
                self._done.put(Done(job, tuple(good), self._clock.now() - began))
            else:
                job()

    def _carry(self, read: bool, block: Labelled, slot: int) -> bool:
        try:
            memory = self._slot(block.name.group, slot)
            return self.files.read(block, memory) if read else self.files.write(block, memory)
        except Exception:  # noqa: BLE001 - logged; whoever waits for the job must be told its end
            _log.exception("A block of keys and values was lost on its way to or from the disk")
            return False
        finally:
            if not read:
                self._waits_for.discard(block.name)


def _gone(group: int, slot: int) -> Buffer:
    """In place of memory that is no longer there; nothing asks for it, and nobody holds it any more."""
    raise RuntimeError(f"slot {slot} of group {group} is gone")
