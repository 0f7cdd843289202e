"""The disk as a tier of KV memory: which files are this model's, and what is written before the engine ends.

Invariant: files are found again only where every bit of what was computed from the same tokens would be the same.
"""

import logging
from hashlib import sha256
from pathlib import Path

import pelton
from pelton.backends.backend import Executable
from pelton.checkpoint.checkpoint import Checkpoint
from pelton.core.clock import Clock
from pelton.core.config import EngineConfig
from pelton.core.counters import Counters
from pelton.core.environment import cache_folder
from pelton.kv.tiers.files import BlockFiles
from pelton.kv.tiers.worker import DiskWorker
from pelton.program.coordinates import coordinates
from pelton.program.module import Module
from pelton.schedule.scheduler import Scheduler

ORDER = 1  # the order of sums (docs/numerics.md)
GIB = 1 << 30
IDLE_BYTES = 32 << 20  # are copied at a time: a request that comes in that moment waits for a few milliseconds
PATIENCE = 5.0  # seconds that the end of an engine takes for writing what is cached

_log = logging.getLogger("pelton")


def fingerprint(config: EngineConfig, module: Module, checkpoint: Checkpoint, executable: Executable) -> bytes:
    """SHA-256 of all that decides the bytes of a block beside its tokens and their namespace.

    The first time the model's files are read for it.
    """
    decides = (
        pelton.__version__,
        ORDER,
        config.backend.backend,
        config.model.dtype == "float32",
        config.cache.kv_codec,
        config.cache.block_size,
        executable.block_bytes,
        checkpoint.fingerprint(),
        coordinates(module),
    )
    return sha256(repr(decides).encode()).digest()


def open_disk(config: EngineConfig, fingerprinted: bytes, executable: Executable) -> DiskWorker:
    """The thread that carries blocks to and from the files."""
    folder = config.cache.kv_disk_folder
    top = cache_folder() / "kv" if folder is None else Path(folder).expanduser()
    blocks = executable.blocks()
    files = BlockFiles(top, fingerprinted, config.cache.kv_disk_bytes, Counters())
    return DiskWorker(files, lambda group, slot: blocks.slot(group, slot).data)


def close_disk(worker: DiskWorker, scheduler: Scheduler, executable: Executable, clock: Clock) -> None:
    """Ends the thread, then writes what is cached and in no file yet, for a while. No step may run any more."""
    worker.close()
    offload = scheduler.tiers.offload
    if offload is None:
        return
    blocks, until, kept = executable.blocks(), clock.now() + PATIENCE, 0
    for block, number in offload.kept():
        if clock.now() > until:
            _log.debug("Not all cached blocks of keys and values were written: that takes more than %g s.", PATIENCE)
            break
        kept += worker.files.write(block, blocks.content(block.name.group, number).data)
    _log.debug("%d blocks of keys and values were written at the end.", kept)


def disk_line(worker: DiskWorker | None, limit: int) -> str:
    """For people; "" where nothing is kept."""
    if worker is None:
        return ""
    files = worker.files
    return (
        f"{files.count} blocks of earlier prompts in {files.folder}, at most {limit / GIB:.1f} GiB with those of other "
        "models"
    )


def keep_when_idle(scheduler: Scheduler, executable: Executable) -> None:
    """Some of what is cached goes to files, while nobody waits for anything else."""
    scheduler.tiers.collect()
    offload, blocks = scheduler.tiers.offload, executable.blocks()
    if offload is not None:

        def copy(group: int, block: int, slot: int) -> None:
            blocks.slot(group, slot)[:] = blocks.content(group, block)

        offload.keep(IDLE_BYTES // max(executable.block_bytes), copy)
