"""Rig: fresh engines over one executable, each with its own settings and as few blocks as wanted.

Invariant: an engine built here knows nothing of the ones before it, whatever bytes these left in the blocks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pelton.backends.backend import Executable
from pelton.core.clock import Clock
from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.counters import Counters
from pelton.engine.engine import Engine
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.kv.tiers.files import BlockFiles
from pelton.kv.tiers.in_turn import InTurn
from pelton.kv.tiers.worker import Carrier
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.sampling.encode import encode
from pelton.schedule import ORDERS
from pelton.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the executable was made for: tokens and sequences of a step, KV blocks of each group (without the null
    block) and its window, their tokens; `max_len`: tokens of a prompt and its answer; `slots`: of each group, in
    host memory.
    """

    tokens: int
    rows: int
    groups: tuple[tuple[int, int | None], ...]
    block_size: int
    max_len: int
    slots: tuple[int, ...] = ()

    @property
    def blocks(self) -> int:
        """Blocks of the largest group."""
        return max(blocks for blocks, _ in self.groups)


@dataclass(frozen=True, slots=True)
class Rig:
    """The parts engines are made of: the executable with its KV memory, and how the others are made."""

    executable: Executable
    sizes: Sizes
    clock: Clock
    pool: Callable[[int], BlockPool] = BlockPool
    scheduler: type[Scheduler] = Scheduler
    runner: type[Runner] = Runner

    def engine(
        self,
        schedule: ScheduleSection,
        cache: CacheSection,
        blocks: int,
        executable: Executable | None = None,
        disk: Carrier | None = None,
    ) -> Engine:
        """An engine with nothing to do and `blocks` KV blocks of each group, or all there are of it.

        `executable`: the rig's own in another's clothes. `disk`: who carries evicted blocks to files.
        """
        sizes = self.sizes
        assert blocks <= sizes.blocks, f"{blocks} blocks of {sizes.blocks}"
        order = ORDERS.get(schedule.scheduling_policy)()
        slots, each = sizes.slots or (0,) * len(sizes.groups), self.executable.block_bytes
        groups = [
            KVGroup(self.pool(min(blocks, most) + 1), window, waiting, size)
            for (most, window), waiting, size in zip(sizes.groups, slots, each, strict=True)
        ]
        scheduler = self.scheduler(schedule, cache, order, groups, sizes.block_size, sizes.max_len, disk)
        scheduler.series.seconds = float("inf")  # what is planned does not depend on times
        scheduler.tiers.rates.learns = False
        windows = [group.window for group in groups]
        states = RowStates(schedule.max_num_seqs, scheduler.max_len, sizes.block_size, windows)
        runner = self.runner(executable or self.executable, states, encode)
        return Engine(scheduler, runner, self.clock, Counters(), sizes.block_size)

    @contextmanager
    def files(self, cache: CacheSection) -> Iterator[Carrier | None]:
        """Files for evicted blocks, where the settings want them; they are gone afterwards."""
        if not cache.kv_disk_bytes:
            yield None
            return
        blocks = self.executable.blocks()
        with TemporaryDirectory() as folder:
            files = BlockFiles(Path(folder), bytes(32), cache.kv_disk_bytes, Counters())
            yield InTurn(files, lambda group, slot: blocks.slot(group, slot).data)
