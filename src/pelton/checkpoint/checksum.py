"""SHA-256 of model files, remembered in the cache folder so that a file is read once.

What is remembered is of one state of one file: replaced or written to, it is read again, also where its size and the
time of the last write are as before.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError

CHUNK = 1 << 20
HEX_LETTERS = 64


def file_digest(path: Path, *, start: int = 0, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file in hex, of its bytes from `start` on. `advance` is told of every chunk of bytes read; not
    called when remembered.

    What `advance` raises comes out, and nothing is remembered: so reading is given up.
    """
    try:
        place = _memory(path, start)  # of the state before reading: one that changes meanwhile has another place
        if digest := _remembered(place):
            return digest
        digest = read_digest(path, start=start, advance=advance)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).", "Check the file and its permissions.") from error
    _remember(place, digest)
    return digest


def known_digest(path: Path) -> str | None:
    """SHA-256 of a file in hex where it is remembered; reads nothing of the file."""
    try:
        return _remembered(_memory(path))
    except (OSError, UnicodeDecodeError):
        return None


def file_state(stat: os.stat_result) -> tuple[int, ...]:
    """Changes whenever somebody writes to a file or puts another one in its place.

    Copies and archives keep the time of the last write; that of the last change of the file itself nobody can set.
    """
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _remembered(known: Path) -> str | None:
    return digest if known.is_file() and len(digest := known.read_text()) == HEX_LETTERS else None


def read_digest(path: Path, *, start: int = 0, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of the bytes from `start` on as they are now; asks no memory."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            state.update(chunk)
            if advance is not None:
                advance(len(chunk))
    return state.hexdigest()


def joint_digest(paths: Iterable[Path]) -> str:
    """SHA-256 over the names and digests of several files."""
    state = hashlib.sha256()
    for path in paths:
        state.update(f"{path.name} {file_digest(path)}\n".encode())
    return state.hexdigest()


def remember_digest(path: Path, digest: str, *, start: int = 0) -> None:
    """Keeps a digest for file_digest; a cache folder that cannot be written only costs time."""
    try:
        place = _memory(path, start)
    except OSError:
        return
    _remember(place, digest)


def mark_used(path: Path, *, start: int = 0) -> None:
    """Notes the time of a use with what is remembered of a file, which itself stays in the state that it is in."""
    with suppress(OSError):
        os.utime(_memory(path, start))


def last_used(path: Path, *, start: int = 0) -> int:
    """When it was marked last, in ns; of a file of which nothing is remembered, when it was written. OSError."""
    try:
        return _memory(path, start).stat().st_mtime_ns
    except FileNotFoundError:
        return path.stat().st_mtime_ns


def _remember(place: Path, digest: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f"{place.name}.{os.getpid()}")
        fresh.write_text(digest)
        fresh.replace(place)
    except OSError:
        return


def _memory(path: Path, start: int = 0) -> Path:
    part = (start,) if start else ()
    key = "\n".join(map(str, (path.resolve(), *file_state(path.stat()), *part)))
    return cache_folder() / "digests" / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
