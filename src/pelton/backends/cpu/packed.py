"""Packed weights on disk, so that a second start maps what the first one packed.

One file per model and way of packing, named by the content of the weights: equal names mean equal bytes. A file is
written under another name, synced and renamed, so half of one is never found. One that differs by a bit from what was
written is deleted and made again; each state of a file is read for that once. What was not used for the longest time
goes first where all of them together are too large. Invariant: no file of others in the folder is touched.
"""

import atexit
import hashlib
import json
import logging
import mmap
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pelton.backends.cpu import _native
from pelton.checkpoint.checksum import (
    HEX_LETTERS,
    file_digest,
    file_state,
    last_used,
    mark_used,
    remember_digest,
)
from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError

LEAST_BYTES = 8 << 20  # of one; less is packed in no time
FREE_SHARE = 10  # a file takes no more than this part of what is free on the disk
MAGIC = b"pelton packed weights 2\n"  # a line with the digest of all behind it follows
CHECKED_FROM = len(MAGIC) + HEX_LETTERS + 1
PAGE = mmap.ALLOCATIONGRANULARITY
PATIENCE = 2.0  # seconds that the end of an engine waits for a file to be written
PIECE = 8 << 20  # bytes written at a time, so that closing need not wait for all of them
_SUFFIX = ".packed"
_OURS = re.compile(r"[0-9a-f]{64}\.packed(?:\.([0-9]+)\.[0-9]+)?")  # whole; or being written, by this process

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


class GivenUp(Exception):
    """What a Keeper writes is not waited for any longer."""


class PackedFile:
    """An open file of packed matrices, in the order in which they were wanted."""

    def __init__(self, path: Path) -> None:
        """ValueError where the file is not what it should be, OSError or CheckpointError where it cannot be read.

        All of it is read, unless it is in a state that we wrote or read before; whoever interrupts that loses nothing.
        """
        self.path = path
        self._file = open(path, "rb", opener=_open_at_once)
        try:
            self._check()
            self.entries = self._read_entries()
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> None:
        opened = os.fstat(self._file.fileno())
        if not stat.S_ISREG(opened.st_mode):
            raise ValueError("it is no regular file")
        if self._file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it is no file of packed weights of this version")
        digest = self._file.read(HEX_LETTERS + 1)
        found = file_digest(self.path, start=CHECKED_FROM)
        if file_state(self.path.stat()) != file_state(opened):
            raise FileNotFoundError(f"{self.path} is another file now")
        if digest != f"{found}\n".encode():
            raise ValueError("it is damaged")

    def _read_entries(self) -> tuple[Entry, ...]:
        """Of a file that is as it was written."""
        header = self._file.read(int(self._file.readline()))
        return tuple(Entry(offset, size) for offset, size in json.loads(header))

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
            mark_used(path, start=CHECKED_FROM)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except (OSError, ValueError, TypeError, CheckpointError) as error:
            self.drop(path, str(error))
            return None
        return file

    def drop(self, path: Path, why: str) -> None:
        """Deletes a file that is not to be trusted; a folder of that name stays."""
        _log.warning("Packed weights in %s are not used: %s. They are packed again.", path, why)
        with suppress(OSError):  # it may be another user's
            path.unlink(missing_ok=True)

    def has_room(self, size: int) -> bool:
        """Whether a file of this size (file_bytes) may be written at all: it fits the limit and the disk."""
        if not LEAST_BYTES <= size <= self._limit:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return size * FREE_SHARE <= shutil.disk_usage(self._folder).free
        except OSError as error:
            _log.warning(
                "No packed weights are kept, so the next start packs them again: %s: %s. "
                "Let the folder be written, choose another by PELTON_CACHE, or set packed_cache_bytes=0.",
                error.strerror,
                error.filename,
            )
            return False

    def write(self, wanted: Sequence[Wanted], parts: Sequence[memoryview], stopped: Callable[[], bool]) -> bool:
        """Keeps packed matrices, each at a page of its own; False where that was not possible, or `stopped` said so."""
        path = self._folder / (name_of(wanted) + _SUFFIX)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            if path.is_dir() or not self._make_room(file_bytes(parts)):
                return False
            digest = _write_file(fresh, parts, stopped)
            if digest is None:
                return False
            fresh.replace(path)
            remember_digest(path, digest, start=CHECKED_FROM)
            return True
        except OSError as error:
            _log.debug("Packed weights were not kept: %s", error)
            return False
        finally:
            fresh.unlink(missing_ok=True)

    def _make_room(self, size: int) -> bool:
        """Deletes what was not used for the longest time, and what a process that is gone has left half written.

        False where what others are writing leaves no room, whatever is deleted.
        """
        found, taken = [], size
        for path in self._folder.iterdir():
            ours = _OURS.fullmatch(path.name)
            if ours is None:
                continue
            writer = ours[1]
            try:
                entry = path.stat(follow_symlinks=False)
                if not stat.S_ISREG(entry.st_mode):
                    continue
                if writer is None:
                    found.append((last_used(path, start=CHECKED_FROM), entry.st_size, path))
            except FileNotFoundError:  # another process renamed or deleted it
                continue
            if writer is None:
                continue
            if Path(f"/proc/{writer}").exists():
                taken += entry.st_size
            else:
                path.unlink(missing_ok=True)
        if taken > self._limit:
            return False
        total = taken + sum(held for _, held, _ in found)
        for _, held, path in sorted(found):
            if total <= self._limit:
                break
            path.unlink(missing_ok=True)
            total -= held
        return True


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


def file_bytes(parts: Sequence[memoryview]) -> int:
    """The size of the file that keeps these matrices, each at a page of its own."""
    return _header(parts)[1]


def _open_at_once(path: str, flags: int) -> int:
    """Of anything that stands there: a pipe is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _header(parts: Sequence[memoryview]) -> tuple[bytes, int]:
    """(what stands between the digest and the first matrix, bytes of the whole file)."""

    def text_and_end(first: int) -> tuple[bytes, int]:
        entries, at = [], first
        for part in parts:
            entries.append((at, len(part)))
            at += -(-len(part) // PAGE) * PAGE
        text = json.dumps(entries).encode()
        return f"{len(text)}\n".encode() + text, at

    first = PAGE  # where the first matrix stands depends on the header's length, and the other way round
    while CHECKED_FROM + len(text_and_end(first)[0]) > first:
        first += PAGE
    text, end = text_and_end(first)
    return text.ljust(first - CHECKED_FROM, b"\0"), end


def _write_file(path: Path, parts: Sequence[memoryview], stopped: Callable[[], bool]) -> str | None:
    """SHA-256 in hex of what stands behind the line with it; None where `stopped` said so."""
    state = hashlib.sha256()
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            state.update(data)
            file.write(data)

        file.write(MAGIC.ljust(CHECKED_FROM, b"\n"))
        put(_header(parts)[0])
        for part in parts:
            for start in range(0, len(part), PIECE):
                if stopped():
                    return None
                put(part[start : start + PIECE])
            put(b"\0" * (-len(part) % PAGE))
        file.seek(len(MAGIC))
        file.write(state.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())
    return state.hexdigest()
