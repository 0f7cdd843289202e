"""SHA-256 of model files, remembered in the cache folder by path, size and time so that a file is read once."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError

CHUNK = 1 << 20
HEX_LETTERS = 64


def file_digest(path: Path, *, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file in hex. `advance` is told of every chunk of bytes read; not called when remembered."""
    try:
        if digest := _remembered(path):
            return digest
        digest = read_digest(path, advance=advance)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).", "Check the file and its permissions.") from error
    remember_digest(path, digest)
    return digest


def known_digest(path: Path) -> str | None:
    """SHA-256 of a file in hex where it is remembered; reads nothing of the file."""
    try:
        return _remembered(path)
    except (OSError, UnicodeDecodeError):
        return None


def _remembered(path: Path) -> str | None:
    known = _memory(path)
    return digest if known.is_file() and len(digest := known.read_text()) == HEX_LETTERS else None


def read_digest(path: Path, *, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of the bytes as they are now; asks no memory."""
    state = hashlib.sha256()
    with path.open("rb") as file:
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


def remember_digest(path: Path, digest: str) -> None:
    """Keeps a digest for file_digest; a cache folder that cannot be written only costs time."""
    try:
        place = _memory(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f"{place.name}.{os.getpid()}")
        fresh.write_text(digest)
        fresh.replace(place)
    except OSError:
        return


def _memory(path: Path) -> Path:
    stat = path.stat()
    key = f"{path.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}"
    return cache_folder() / "digests" / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
