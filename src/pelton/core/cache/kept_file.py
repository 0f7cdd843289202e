"""Files that are kept for later starts and can be made again. What they mean, and whether that is still true, their
owners say.

Invariant: a reader at any time, also after a crash, sees a whole file or none.
"""

import logging
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
_log = logging.getLogger("pelton")


def load_json(path: Path, kind: type[T]) -> T | None:
    """The value of a JSON file; None where it is not there or holds nothing of this kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:  # most often: it is not there yet
        _log.debug("%s: %s", path, error)
        return None


def save(path: Path, content: bytes) -> Path | None:
    """The path, which holds the content from now on; None where it cannot be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        _log.debug("%s cannot be written: %s", path, error)
        return None
    return path


def write_whole(path: Path, content: bytes) -> None:
    """The same, with its folder; OSError where that cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
