"""A file mapped into memory and the tensors in it. Nothing is copied; the bytes are valid while the file is open."""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pelton.checkpoint.checksum import file_digest, file_state, known_digest
from pelton.core.errors import CheckpointError

PAGE = mmap.PAGESIZE
KEPT_LETTERS = 80  # of a name from a foreign file, in an error message


def quoted(text: object) -> str:
    """A name from a file for an error message: escaped and cut, since a corrupt file may hold anything."""
    shown = repr(text)
    return shown if len(shown) <= KEPT_LETTERS else shown[: KEPT_LETTERS - 4] + "...'"


class MappedFile:
    """A whole file, mapped read-only. Raises CheckpointError when it is absent, empty, unreadable or a device."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():
                what = "is no regular file" if path.exists() else "does not exist"
                raise CheckpointError(f"{path}: {what}.", "Check the path of the model.")
            with path.open("rb") as file:
                self._state = file_state(os.fstat(file.fileno()))
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise CheckpointError(f"{path}: the file is empty.", "Download it again.")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            remedy = "Check the file and its permissions."
            raise CheckpointError(f"{path}: cannot be read ({error}).", remedy) from error
        self.size = len(self.data)

    def error(self, what: str, at: int | None = None) -> CheckpointError:
        """CheckpointError that names this file, what is wrong with it and at which byte."""
        place = "" if at is None else f" at byte {at}"
        return CheckpointError(f"{self.path}: {what}{place}.", "The file is damaged or not finished: fetch it again.")

    def view(self, start: int, stop: int) -> memoryview:
        """Bytes [start, stop), not copied; the system is told to read them ahead."""
        first = start - start % PAGE
        if stop > start:
            self.data.madvise(mmap.MADV_WILLNEED, first, stop - first)
        return memoryview(self.data)[start:stop]

    def release(self, start: int, stop: int) -> None:
        """Drops the whole pages inside [start, stop) from this process; touching them maps them again."""
        first, last = start + -start % PAGE, stop - stop % PAGE
        if last > first:
            self.data.madvise(mmap.MADV_DONTNEED, first, last - first)

    def digest(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        """SHA-256 of the file in hex; None where it is not remembered (and must not be `read`), or where another file
        has come to stand at the path, or this one was written to, since it was mapped. `advance`: see file_digest.
        """
        try:
            digest = file_digest(self.path, advance=advance) if read else known_digest(self.path)
            return digest if file_state(self.path.stat()) == self._state else None
        except (CheckpointError, OSError):
            return None

    def close(self) -> None:
        """Ends the mapping; views that are still held keep their bytes until they are gone."""
        try:
            self.data.close()
        except BufferError:
            # Someone holds a view: dropping ours lets the mapping go with the last one.
            self.data = mmap.mmap(-1, 1)
            self.data.close()


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """Bytes [start, stop) of a file as a tensor: a TensorSource of program.weights."""

    name: str
    shape: tuple[int, ...]
    format: str
    file: MappedFile
    start: int
    stop: int

    def read(self) -> memoryview:
        return self.file.view(self.start, self.stop)

    def release(self) -> None:
        self.file.release(self.start, self.stop)

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        """See program.weights.Identified."""
        digest = self.file.digest(read=read, advance=advance)
        return None if digest is None else f"{digest}:{self.start}:{self.stop}"
