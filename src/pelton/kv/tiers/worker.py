"""Carriers of blocks between host slots and files: a thread, and one that works when it is asked what is done.

They decide nothing. Invariant: jobs are done one after the other, and each behind those started before it that have to
do with the same blocks.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, MutableSequence
from contextlib import suppress
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


Work = Job | Callable[[], object]


@dataclass(frozen=True, slots=True)
class Done:
    """A job that is over, and how each of its blocks went; `seconds` that it took, 0 where nobody measures that."""

    job: Job
    good: tuple[bool, ...]
    seconds: float = 0.0


class Carrier(Protocol):
    """Who carries blocks between host slots and `files`."""

    files: BlockFiles

    def has(self, name: Name) -> bool:
        """Whether a read that is asked for now may find a block."""
        ...

    def start(self, job: Job) -> None:
        """Behind all that was started before; one that reads may pass those that write other blocks, since somebody
        waits for it. What is in the slots is the carrier's until the job is told as done.
        """
        ...

    def call(self, work: Callable[[], object]) -> None:
        """Runs something on the files, in turn: nothing passes it."""
        ...

    def done(self, seconds: float = 0.0, awaited: Collection[Job] = ()) -> list[Done]:
        """Jobs that are over since the last call; waits at most so long for one of `awaited`, or else for any."""
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
        self._jobs: deque[Work | None] = deque()
        self._changed = threading.Condition()  # of these
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._waits_for: set[Name] = set()  # to be written
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pelton-kv-disk", daemon=True)
        self._thread.start()

    def has(self, name: Name) -> bool:
        """Whether a read that is asked for now may find a block."""
        return name in self._waits_for or self.files.has(name)

    def start(self, job: Job) -> None:
        """See Carrier."""
        if not job.read:
            self._waits_for.update(block.name for block in job.blocks)
        with self._changed:
            line_up(self._jobs, job)
            self._changed.notify()

    def call(self, work: Callable[[], object]) -> None:
        """See Carrier."""
        self._put(work)

    def done(self, seconds: float = 0.0, awaited: Collection[Job] = ()) -> list[Done]:
        """See Carrier."""
        found: list[Done] = []
        until = self._clock.now() + seconds
        with suppress(queue.Empty):
            while True:
                enough = found and (not awaited or any(one.job in awaited for one in found))
                left = 0.0 if enough else until - self._clock.now()
                found.append(self._done.get(timeout=left) if left > 0 else self._done.get_nowait())
        return found

    def close(self) -> None:
        """Jobs that were started are finished; then it is over. Twice is no error."""
        if not self._closed:
            self._closed = True
            self._put(None)
            self._thread.join()
            self._slot = _gone

    def _put(self, work: Callable[[], object] | None) -> None:
        with self._changed:
            self._jobs.append(work)
            self._changed.notify()

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs)
            return self._jobs.popleft()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, Job):
                began = self._clock.now()
                good = [self._carry(job.read, *pair) for pair in zip(job.blocks, job.slots, strict=True)]
                self._done.put(Done(job, tuple(good), self._clock.now() - began))
            else:
                self._do(job)

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - logged; what comes behind it is done all the same
            _log.exception("Something that was to be done with files of keys and values broke")

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


def line_up(jobs: MutableSequence[Work | None], job: Job) -> None:
    """Puts a job in its place among those that are still to be done: see Carrier.start."""
    names, place = {block.name for block in job.blocks}, len(jobs)
    while job.read and place:
        before = jobs[place - 1]
        if not isinstance(before, Job) or before.read or any(block.name in names for block in before.blocks):
            break
        place -= 1
    jobs.insert(place, job)


def _gone(group: int, slot: int) -> Buffer:
    """In place of memory that is no longer there; nothing asks for it, and nobody holds it any more."""
    raise RuntimeError(f"slot {slot} of group {group} is gone")
