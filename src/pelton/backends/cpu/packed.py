"""Packed weights on disk, so that a second start maps what the first one packed.

One file per model and way of packing, named by the content of the weights: equal names mean equal bytes. A file is
written under another name, synced and renamed, so half of one is never found; one that is damaged, or was packed by
another build, is deleted and made again. What was not used for the longest time goes first where all of them together
are too large.
"""

import atexit
import hashlib
import json
import logging
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pelton.backends.cpu import _native
from pelton.core.environment import cache_folder

LEAST_BYTES = 8 << 20  # of one; less is packed in no time
FREE_SHARE = 10  # a file takes no more than this part of what is free on the disk
MAGIC = b"pelton packed weights 1\n"
PATIENCE = 2.0  # seconds that the end of an engine waits for a file to be written
PIECE = 8 << 20  # bytes written at a time, so that closing need not wait for all of them
_SUFFIX = ".packed"

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One matrix as it is to be packed. `identity`: what its bytes in the model's file are, by content."""

    identity: str
    target: str
    rows: int
    cols: int
    row_order: tuple[int, ...] | None = None

    def words(self) -> str:
        """All that decides the packed bytes, apart from how this build lays them out."""
        order = "" if self.row_order is None else hashlib.sha256(str(self.row_order).encode()).hexdigest()
        return f"{self.identity} {self.target} {self.rows} {self.cols} {order}\n"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a matrix stands in the file."""

    offset: int
    size: int


class PackedFile:
    """An open file of packed matrices, in the order in which they were wanted."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError where the file is not what it should be, OSError where it cannot be read."""
        self.path = path
        self._file = path.open("rb")
        try:
            self.entries = self._read_entries()
        except BaseException:
            self._file.close()
            raise

    def _read_entries(self) -> tuple[Entry, ...]:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise ValueError("no file of packed weights")
        digest, _, size = self._file.readline(128).decode("ascii").strip().partition(" ")
        whole = os.fstat(self._file.fileno()).st_size
        if int(size) > whole:
            raise ValueError("it is cut short")
        header = self._file.read(int(size))
        if hashlib.sha256(header).hexdigest() != digest:
            raise ValueError("its header is damaged")
        content = json.loads(header)
        entries = tuple(Entry(offset, size) for offset, size in content["entries"])
        if content["bytes"] != whole:
            raise ValueError("it is cut short, or too long")
        return entries

    @property
    def descriptor(self) -> int:
        """The file's number, for mapping it."""
        return self._file.fileno()

    def close(self) -> None:
        """What is mapped stays mapped."""
        self._file.close()


class PackedCache:
    """The folder of all these files. `limit`: bytes they may take together; 0: nothing is kept or looked for."""

    def __init__(self, limit: int, folder: Path | None = None) -> None:
        self._limit = limit
        self._folder = folder or cache_folder() / "packed"

    @property
    def used(self) -> bool:
        return self._limit > 0

    def open(self, wanted: Sequence[Wanted]) -> PackedFile | None:
        """The file that has these matrices, if there is one."""
        path = self._folder / (name_of(wanted) + _SUFFIX)
        try:
            file = PackedFile(path)
            if len(file.entries) != len(wanted):
                file.close()
                raise ValueError("it has other matrices")
            with suppress(OSError):
                os.utime(path)  # used last now
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.drop(path, str(error))
            return None
        return file

    def drop(self, path: Path, why: str) -> None:
        """Deletes a file that is not to be trusted."""
        _log.warning("Packed weights in %s are not used: %s. They are packed again.", path, why)
        path.unlink(missing_ok=True)

    def has_room(self, size: int) -> bool:
        """Whether a file of this size may be written at all: it fits the limit and the disk."""
        if not LEAST_BYTES <= size <= self._limit:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return size * FREE_SHARE <= shutil.disk_usage(self._folder).free
        except OSError as error:
            _log.debug("No packed weights are kept: %s", error)
            return False

    def write(self, wanted: Sequence[Wanted], parts: Sequence[memoryview], stopped: Callable[[], bool]) -> bool:
        """Keeps packed matrices, each at a page of its own; False where that was not possible, or `stopped` said so."""
        path = self._folder / (name_of(wanted) + _SUFFIX)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            self._make_room(sum(len(part) for part in parts))
            if not _write_file(fresh, parts, stopped):
                return False
            fresh.replace(path)
            return True
        except OSError as error:
            _log.debug("Packed weights were not kept: %s", error)
            return False
        finally:
            fresh.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Deletes what was not used for the longest time, and what a process that is gone has left half written."""
        found = []
        for path in self._folder.iterdir():
            stat = path.stat()
            if path.suffix == _SUFFIX:
                found.append((stat.st_mtime_ns, stat.st_size, path))
            elif not _alive(path.name.rpartition(_SUFFIX + ".")[2]):
                path.unlink(missing_ok=True)
        total = size + sum(size for _, size, _ in found)
        for _, size_of_file, path in sorted(found):
            if total <= self._limit:
                return
            path.unlink(missing_ok=True)
            total -= size_of_file


class Keeper:
    """Writes a file beside the work of the engine. After `close` it holds nothing any more."""

    def __init__(self, write: Callable[[Callable[[], bool]], object]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=write, args=(self._stop.is_set,), name="pelton-packed", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a program may end without closing its engine

    def close(self, patience: float = PATIENCE) -> None:
        """Lets it finish for so many seconds, then gives it up."""
        atexit.unregister(self.close)
        self._thread.join(patience)
        self._stop.set()
        self._thread.join()


def name_of(wanted: Sequence[Wanted]) -> str:
    """The digest of all that decides the packed bytes."""
    state = hashlib.sha256(f"layout {_native.PACK_LAYOUT}\n".encode())
    for one in wanted:
        state.update(one.words().encode())
    return state.hexdigest()


def _write_file(path: Path, parts: Sequence[memoryview], stopped: Callable[[], bool]) -> bool:
    page = mmap.ALLOCATIONGRANULARITY
    sizes = [len(part) for part in parts]

    def header(first: int) -> bytes:
        entries, at = [], first
        for size in sizes:
            entries.append((at, size))
            at += -(-size // page) * page
        text = json.dumps({"entries": entries, "bytes": at}).encode()
        return MAGIC + f"{hashlib.sha256(text).hexdigest()} {len(text)}\n".encode() + text

    first = page  # where the first matrix stands depends on the header's length, and the other way round
    while len(header(first)) > first:
        first += page
    with path.open("wb") as file:
        file.write(header(first).ljust(first, b"\0"))
        for part, size in zip(parts, sizes, strict=True):
            for start in range(0, size, PIECE):
                if stopped():
                    return False
                file.write(part[start : start + PIECE])
            file.write(b"\0" * (-size % page))
        file.flush()
        os.fsync(file.fileno())
    return True


def _alive(maker: str) -> bool:
    """Whether the process that began a file under this name ("pid.thread") still runs."""
    number = maker.partition(".")[0]
    return number.isdecimal() and Path(f"/proc/{number}").exists()
