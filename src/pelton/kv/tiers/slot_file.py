"""A session's blocks in one file, whole by itself: what a conversation sleeps in, and is woken from.

In the file: what it is and its fingerprint, the contents of the blocks as they came, then the foot, which says what
they are with a digest of each, its length, and a digest of all that but the contents. It is written under another name
and renamed. Invariant: a reader exists only of a file that is, to the bit, one that a writer of its fingerprint wrote.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from pelton.kv.tiers.files import DIGEST_BYTES, PART, drop_if_left, open_part, part_of, write_all

MAGIC = b"pelton slot 1\n"
_HEAD = struct.Struct(f"<{len(MAGIC)}s32s")  # then the contents, then the foot
_END = struct.Struct(f"<Q{DIGEST_BYTES}s")  # bytes of the foot; digest of head, foot and these bytes' number
MOST_FOOT = 1 << 30
# Codes of errors about slots.
BUSY, EMPTY, BAD_FILE, NO_ROOM = "slot_busy", "slot_empty", "invalid_slot_file", "slot_too_large"
DAMAGED = "it is cut off or damaged"
FOREIGN = "it was saved with another model, another arithmetic or block layout, or another version of Pelton"


class Foot(msgspec.Struct, frozen=True, array_like=True):
    """`keys`: tokens of the blocks along the path, the first one's first (see BlockKeys); the last may be filled in
    part. `contents`: entry of the path, KV group and digest of each block in the file, in its order. `block_bytes`: of
    each group.
    """

    namespace: bytes
    block_bytes: tuple[int, ...]
    keys: tuple[bytes, ...]
    contents: tuple[tuple[int, int, bytes], ...]


class SlotWriter:
    """Writes one file; OSError where that cannot be, IsADirectoryError where a folder has its name.

    Used by one thread at a time: `open`, `add`, `finish`, `close`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = part_of(path, ".")
        self._file = -1
        self._head = b""
        self._digests: list[bytes] = []
        self._size = 0

    def open(self, fingerprint: bytes) -> None:
        """Begins; clears away what a process that is gone has left half written."""
        if self._path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for entry in os.scandir(self._path.parent):
            if entry.name.startswith(".") and entry.name.endswith(PART):
                drop_if_left(Path(entry.path))
        self._file = open_part(str(self._part), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._head = _HEAD.pack(MAGIC, fingerprint)
        self._write(self._head)

    def add(self, contents: Iterable[bytes]) -> None:
        """The next blocks."""
        for content in contents:
            self._digests.append(_digest(content))
            self._write(content)

    def finish(
        self, namespace: bytes, block_bytes: tuple[int, ...], keys: tuple[bytes, ...], places: Sequence[tuple[int, int]]
    ) -> int:
        """The file has its name; returns its size. `places`: (entry, group) of the blocks that were added."""
        contents = zip(places, self._digests, strict=True)
        listed = tuple((entry, group, digest) for (entry, group), digest in contents)
        foot = msgspec.msgpack.encode(Foot(namespace, block_bytes, keys, listed))
        self._write(foot)
        self._write(_end(self._head, foot))
        os.fsync(self._file)
        self._part.replace(self._path)
        self._close()
        return self._size

    def close(self) -> None:
        """What is not finished is not kept."""
        if self._file >= 0:
            self._close()
            with suppress(OSError):
                self._part.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        write_all(self._file, data)
        self._size += len(data)

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(file)


class SlotReader:
    """An open file that is as it was written. `size`: its bytes; `foot`: what is in it.

    ValueError with the reason for a file that is not to be trusted; OSError where it cannot be read. All of it is
    looked at here, a block at a time. Used by one thread at a time.
    """

    def __init__(self, path: Path, fingerprint: bytes, block_bytes: Sequence[int]) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._next = 0
        self._at = _HEAD.size
        try:
            info = os.fstat(self._file)
            if not stat.S_ISREG(info.st_mode):
                raise ValueError("it is no file")
            self.size = info.st_size
            self.foot = self._checked(fingerprint, tuple(block_bytes))
            for _ in self.foot.contents:
                self.read(1)
            self._next, self._at = 0, _HEAD.size
        except BaseException:
            self.close()
            raise

    def read(self, count: int) -> list[bytes]:
        """The next blocks; ValueError where they are no longer what they were."""
        found = []
        for _, group, digest in self.foot.contents[self._next : self._next + count]:
            content = self._get(self._at, self.foot.block_bytes[group])
            if _digest(content) != digest:
                raise ValueError(DAMAGED)
            self._at += len(content)
            found.append(content)
        self._next += count
        return found

    def close(self) -> None:
        """Twice is no error."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def _checked(self, fingerprint: bytes, block_bytes: tuple[int, ...]) -> Foot:
        head = self._get(0, _HEAD.size)
        magic, theirs = _HEAD.unpack(head)
        if magic != MAGIC:
            raise ValueError("it is no saved slot, or one of another version of Pelton")
        if theirs != fingerprint:
            raise ValueError(FOREIGN)
        end = self._get(self.size - _END.size, _END.size)
        length, _ = _END.unpack(end)
        begin = self.size - _END.size - length
        if not (length <= MOST_FOOT and begin >= _HEAD.size):
            raise ValueError(DAMAGED)
        foot = self._get(begin, length)
        if _end(head, foot) != end:
            raise ValueError(DAMAGED)
        try:
            found = msgspec.msgpack.decode(foot, type=Foot)
        except msgspec.DecodeError as error:
            raise ValueError(DAMAGED) from error
        if found.block_bytes != block_bytes:
            raise ValueError(FOREIGN)
        if _HEAD.size + sum(block_bytes[group] for _, group, _ in found.contents) != begin:
            raise ValueError(DAMAGED)
        return found

    def _get(self, place: int, size: int) -> bytes:
        """ValueError where the file ends before, or begins behind."""
        if place < 0:
            raise ValueError(DAMAGED)
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = os.preadv(self._file, [view], place)
            if not got:
                raise ValueError(DAMAGED)
            view, place = view[got:], place + got
        return bytes(data)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def _end(head: bytes, foot: bytes) -> bytes:
    """What stands at the end of a file."""
    length = len(foot).to_bytes(8, "little")
    return _END.pack(len(foot), _digest(head + foot + length))
