"""BlockFiles: blocks of KV memory as files in a folder, found again by later starts and shared by several processes.

A file is written under another name and renamed; what it is and a digest of its content stand at its start. One that is
torn, damaged or another's is deleted, and never used. Invariant: a block that is read is, to the bit, one that was
written under the same fingerprint and name.
"""

import fcntl
import logging
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from pelton.core.counters import Counters
from pelton.kv.tiers.chain import Labelled, Name

MAGIC = b"pelton kv block 1\n"
SUFFIX, PART = ".kv", ".part"
DIGEST_BYTES = 32
_HEAD = struct.Struct(f"<{len(MAGIC)}s32s32s32sIIQ{DIGEST_BYTES}s")  # little-endian; then the key, then the content
SWEEP = 256  # files written between two looks at what others have written
ROOM_LEFT = 0.9  # of the limit is kept where it was exceeded
MOST_FAILURES = 8  # to write, in a row, after which nothing more is written
FOLDER_LETTERS = 32

Buffer = memoryview
_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True)
class _File:
    used: int
    size: int
    path: Path


class BlockFiles:
    """`limit`: bytes that all files in the folder may take, whatever their fingerprint; oldest use goes first.

    `fingerprint`: a digest of all that decides a block's bytes beside its tokens; `folder`: where its files are.
    `counters`: written, read, rejected, failed and deleted files. Used by one thread at a time, but `has`, which any
    may ask.
    """

    def __init__(self, folder: Path, fingerprint: bytes, limit: int, counters: Counters) -> None:
        self.counters = counters
        self.bytes = 0  # of all files, as far as it is known
        self._top = folder
        self.folder = folder_of(folder, fingerprint)
        self._fingerprint = fingerprint
        self.limit = limit
        self._known: set[str] = set()
        self._failures = 0
        self._unread = False  # whether the last file could not be read
        self._since_sweep = 0
        self._sweep()

    @property
    def count(self) -> int:
        """Files of this fingerprint, as far as it is known."""
        return len(self._known)

    @property
    def off(self) -> bool:
        """Whether no more is written: too many writes in a row failed."""
        return self._failures >= MOST_FAILURES

    def has(self, name: Name) -> bool:
        """Whether there is a file of this name, as far as it is known."""
        return name.file in self._known

    def write(self, block: Labelled, content: Buffer) -> bool:
        """Keeps a block; False where that was not possible, which is counted and logged."""
        if self.off:
            return False
        path = self._path(block.name)
        fresh = part_of(path)
        head = _HEAD.pack(*self._stated(block, len(content)), blake2b(content, digest_size=DIGEST_BYTES).digest())
        size = file_bytes(len(content), len(block.key))
        if size > self.limit:
            return False
        try:
            # Prompts stand in the files as they are, so they are their owner's alone.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(fresh, "wb", buffering=0, opener=open_part) as file:
                for part in (head, block.key, content):
                    write_all(file.fileno(), part)
                fresh.replace(path)  # while it is locked
        except OSError as error:
            self._failed(error)
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            return False
        self._failures = 0
        self._known.add(block.name.file)
        self.bytes += size
        self.counters.add("kv_disk_written")
        self._since_sweep += 1
        if self.bytes > self.limit or self._since_sweep >= SWEEP:
            self._sweep()
        return True

    def read(self, block: Labelled, into: Buffer) -> bool:
        """Fills `into` with the block's content; False where there is none to be trusted, whatever is in it then."""
        path = self._path(block.name)
        try:
            with path.open("rb", buffering=0) as file:
                self._check(block, file.read(_HEAD.size), into, file.fileno())
            os.utime(path)
        except FileNotFoundError:
            self._known.discard(block.name.file)
            return False
        except OSError as error:
            self.counters.add("kv_disk_failed")
            if not self._unread:
                _log.warning("A block of keys and values was not read in %s: %s", self.folder, error)
            self._unread = True
            self._known.discard(block.name.file)
            return False
        except ValueError as error:
            self.counters.add("kv_disk_rejected")
            _log.warning("The block of keys and values in %s is not used: %s. It is computed again.", path, error)
            self.drop(block.name)
            return False
        self._unread = False
        self.counters.add("kv_disk_read")
        return True

    def drop(self, name: Name) -> None:
        """Deletes a block."""
        self._known.discard(name.file)
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Deletes all blocks of this fingerprint that are known."""
        for name in list(self._known):
            with suppress(OSError):
                (self.folder / (name + SUFFIX)).unlink(missing_ok=True)
        self._known.clear()
        self._sweep()

    def _check(self, block: Labelled, head: bytes, into: Buffer, file: int) -> None:
        """Reads what follows the head; ValueError where anything is not as it was written."""
        if len(head) != _HEAD.size:
            raise ValueError("it is cut off")
        *stated, digest = _HEAD.unpack(head)
        if tuple(stated) != self._stated(block, len(into)):
            raise ValueError("it is another block, or of another version")
        key = bytearray(len(block.key))
        _read_all(file, memoryview(key))
        if bytes(key) != block.key:
            raise ValueError("it has other tokens")
        _read_all(file, into)
        if os.read(file, 1):
            raise ValueError("it is too long")
        if blake2b(into, digest_size=DIGEST_BYTES).digest() != digest:
            raise ValueError("it is damaged")

    def _stated(self, block: Labelled, size: int) -> tuple[object, ...]:
        name = block.name
        return (MAGIC, self._fingerprint, block.parent, name.digest, name.group, len(block.key), size)

    def _path(self, name: Name) -> Path:
        return self.folder / (name.file + SUFFIX)

    def _failed(self, error: OSError) -> None:
        self.counters.add("kv_disk_failed")
        self._failures += 1
        if self._failures == 1:
            _log.warning("A block of keys and values was not kept in %s: %s", self.folder, error)
        elif self._failures == MOST_FAILURES:
            _log.warning("No more blocks of keys and values are kept: %d failures in a row.", MOST_FAILURES)

    def _sweep(self) -> None:
        """Looks at all files anew; deletes what is too much, and what a process that is gone has left half written."""
        self._since_sweep = 0
        try:
            files = sorted(self._files(), key=lambda file: file.used)
        except OSError as error:
            self._failed(error)
            return
        total = sum(file.size for file in files)
        most = self.limit if total <= self.limit else int(ROOM_LEFT * self.limit)
        for file in files:
            if total <= most:
                break
            with suppress(OSError):
                file.path.unlink(missing_ok=True)
                total -= file.size
                self._known.discard(file.path.name.removesuffix(SUFFIX))
                self.counters.add("kv_disk_deleted")
        self.bytes = total

    def _files(self) -> Iterator[_File]:
        """Those of all fingerprints; `_known` becomes what there is of this one."""
        known = set[str]()
        for folder in self._top.iterdir() if self._top.is_dir() else ():
            if len(folder.name) != FOLDER_LETTERS or not folder.is_dir() or folder.is_symlink():
                continue
            for entry in os.scandir(folder):
                try:
                    if entry.name.endswith(PART):
                        drop_if_left(Path(entry.path))
                    elif entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        yield _File(stat.st_mtime_ns, stat.st_size, Path(entry.path))
                        if folder == self.folder:
                            known.add(entry.name.removesuffix(SUFFIX))
                except FileNotFoundError:  # another process was faster
                    continue
        self._known = known


def folder_of(top: Path, fingerprint: bytes) -> Path:
    """Where in the folder of all the files of this fingerprint are."""
    return top / fingerprint.hex()[:FOLDER_LETTERS]


def file_bytes(content: int, key: int) -> int:
    """Size of the file of a block with so many bytes of content, whose key has so many."""
    return _HEAD.size + key + content


def try_folder(folder: Path, size: int) -> None:
    """OSError where no file of so many bytes can be written to the folder, which is made; none is left."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    trial = part_of(folder / "trial")
    try:
        with open(trial, "wb", buffering=0, opener=open_part) as file:
            write_all(file.fileno(), bytes(size))
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)


def part_of(path: Path, before: str = "") -> Path:
    """A name, of nobody else, under which a file is written until it is whole."""
    return path.with_name(f"{before or path.name}.{secrets.token_hex(8)}.{os.getpid()}{PART}")


def open_part(path: str, flags: int) -> int:
    """A new file, its owner's alone, and locked as long as it is open: see `drop_if_left`."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def drop_if_left(path: Path) -> None:
    """Deletes a part of a file whose writer is gone: nobody holds its lock. (A process of another container is not
    listed here, and one that is dead may be.)
    """
    writer = path.name.removesuffix(PART).rpartition(".")[2]
    if not writer.isdecimal():
        return
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:  # a file system without locks
        if Path(f"/proc/{writer}").exists():
            return
    finally:
        os.close(file)
    path.unlink(missing_ok=True)


def write_all(file: int, data: bytes | Buffer) -> None:
    """All of it; OSError where the disk has no room for that."""
    view = memoryview(data)
    while view:
        written = os.write(file, view)
        if not written:
            raise OSError("nothing could be written")
        view = view[written:]


def _read_all(file: int, into: Buffer) -> None:
    """ValueError where the file ends before."""
    while into:
        got = os.readv(file, [into])
        if not got:
            raise ValueError("it is cut off")
        into = into[got:]
