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
from pelton.core.config import CacheSection, EngineConfig
from pelton.core.counters import Counters
from pelton.core.environment import cache_folder
from pelton.core.errors import SettingError
from pelton.core.words.sizes import size_text
from pelton.engine.capacity import least
from pelton.kv.prefix import TOKEN_BYTES
from pelton.kv.tiers.files import BlockFiles, file_bytes, folder_of, try_folder
from pelton.kv.tiers.worker import DiskWorker
from pelton.program.coordinates import coordinates
from pelton.program.module import Module
from pelton.schedule.scheduler import Scheduler

ORDER = 1  # the order of sums (docs/numerics.md)
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


def open_disk(config: EngineConfig, fingerprinted: bytes, executable: Executable, clock: Clock) -> DiskWorker:
    """The thread that carries blocks to and from the files.

    SettingError where kv_disk_bytes has no room for a block of each KV group, or no such file can be written to the
    folder now: whoever asks for files wants to know that there will be none.
    """
    cache, blocks = config.cache, executable.blocks()
    sizes = [file_bytes(size, cache.block_size * TOKEN_BYTES) for size in executable.block_bytes]
    if cache.kv_disk_bytes < sum(sizes):
        raise SettingError(
            f"kv_disk_bytes={cache.kv_disk_bytes} has no room for a block of each KV group.",
            f"Set kv_disk_bytes to at least {least(sum(sizes))}, or to 0.",
        )
    top = _folder(cache)
    try:
        try_folder(folder_of(top, fingerprinted), max(sizes))
    except OSError as error:
        named = f"The folder {top} for kv_disk_bytes={cache.kv_disk_bytes}"
        if cache.kv_disk_folder is not None:
            named = f"kv_disk_folder={cache.kv_disk_folder!r}"
        raise SettingError(
            f"{named} cannot work: {error.strerror or error}.",
            "Set kv_disk_folder to a folder that this process may write to and that has room, or leave out "
            "kv_disk_bytes.",
        ) from error
    files = BlockFiles(top, fingerprinted, cache.kv_disk_bytes, Counters())
    return DiskWorker(files, lambda group, slot: blocks.slot(group, slot).data, clock)


def _folder(cache: CacheSection) -> Path:
    """Of the files of all models."""
    if cache.kv_disk_folder is None:
        return cache_folder() / "kv"
    try:
        return Path(cache.kv_disk_folder).expanduser()
    except RuntimeError as error:
        raise SettingError(
            f"kv_disk_folder={cache.kv_disk_folder!r} cannot work: there is no such home folder.",
            "Set kv_disk_folder to the whole path of a folder.",
        ) from error


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
        f"{files.count} blocks of earlier prompts in {files.folder}, at most {size_text(limit)} with those of other "
        "models"
    )


def keep_when_idle(scheduler: Scheduler, executable: Executable, files: BlockFiles) -> None:
    """Some of what is cached goes to files, while nobody waits for anything else; half of their size at most, so that
    of what is written none is pushed out by the rest.
    """
    scheduler.tiers.collect()
    offload, blocks = scheduler.tiers.offload, executable.blocks()
    if offload is not None:

        def copy(group: int, block: int, slot: int) -> None:
            blocks.slot(group, slot)[:] = blocks.content(group, block)

        largest = max(executable.block_bytes)
        offload.keep(min(IDLE_BYTES // largest, files.limit // 2 // largest - offload.offered), copy)
