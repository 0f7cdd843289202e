"""InTurn: a Carrier without a thread: what it was told to do is done when it is asked what is done.

So what an engine does with files depends on no time: for checks that must come out alike each time.
"""

from collections.abc import Callable, Collection

from pelton.kv.tiers.chain import Labelled, Name
from pelton.kv.tiers.files import BlockFiles, Buffer
from pelton.kv.tiers.worker import Done, Job


class InTurn:
    """`slot(group, slot)`: the memory of a host slot."""

    def __init__(self, files: BlockFiles, slot: Callable[[int, int], Buffer]) -> None:
        self.files = files
        self._slot = slot
        self._jobs: list[Job] = []
        self._over: list[Done] = []

    def has(self, name: Name) -> bool:
        """See Carrier."""
        waiting = (block.name for job in self._jobs if not job.read for block in job.blocks)
        return self.files.has(name) or name in waiting

    def start(self, job: Job) -> None:
        """See Carrier."""
        self._jobs.append(job)

    def call(self, work: Callable[[], object]) -> None:
        """See Carrier; at once."""
        self._finish()
        work()

    def done(self, seconds: float = 0.0, awaited: Collection[Job] = ()) -> list[Done]:
        """See Carrier; nothing is waited for."""
        self._finish()
        over, self._over = self._over, []
        return over

    def close(self) -> None:
        """See Carrier."""
        self._finish()

    def carry(self, read: bool, block: Labelled, slot: int) -> bool:
        """One block to a slot, or from it to its file; whether that went well."""
        memory = self._slot(block.name.group, slot)
        return self.files.read(block, memory) if read else self.files.write(block, memory)

    def _finish(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            good = [self.carry(job.read, *pair) for pair in zip(job.blocks, job.slots, strict=True)]
            self._over.append(Done(job, tuple(good)))
