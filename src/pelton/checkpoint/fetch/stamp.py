"""Stamps of model files that were fetched from packages: which one, how large, with which checksum.

Invariant: a stamp is written last and as a whole; without one nothing counts as present, and a file that was changed
since its stamp was written is read again.
"""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from pelton.checkpoint.checksum import read_digest, remember_digest
from pelton.checkpoint.fetch.sources import PackagedModel
from pelton.checkpoint.json_files import read_object
from pelton.core.errors import CheckpointError

STAMP = "pulled.json"
FILE_NAME = re.compile(r"[\w][\w.+-]*\.gguf")

_log = logging.getLogger("pelton")


def present(home: Path, source: PackagedModel, *, verify: bool = False) -> Path | None:
    """A whole model file; of several versions the one pulled last. Reads one that was changed since, or if `verify`."""
    found: list[tuple[int, Path, dict[str, Any]]] = []
    for stamp in home.glob(f"{source.version or '*'}/{STAMP}"):
        try:
            content = read_object(stamp)
            name, size = content.get("file"), content.get("size")
            if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
                continue
            model = stamp.with_name(name)
            if source.sha256 in (None, content.get("sha256")) and model.stat().st_size == size:
                found.append((stamp.stat().st_mtime_ns, model, content))
        except (CheckpointError, OSError):  # damaged, or vanished while another process fetches it again
            continue
    if not found:
        return None
    time, model, content = max(found, key=lambda one: one[:2])
    trusted = not verify and content.get("state") == _state(model)
    return model if trusted or _is_whole(model, content, time) else None


def keep(unpacked: Path, folder: Path, source: PackagedModel, others: tuple[Path, ...] = ()) -> Path:
    """Moves a model file and the `others` that belong to it into place, then writes its stamp."""
    folder.mkdir(exist_ok=True)
    model, stamp = folder / unpacked.name, folder / STAMP
    stamp.unlink(missing_ok=True)
    for other in others:
        other.replace(folder / other.name)
    unpacked.replace(model)
    content = {
        "file": model.name,
        "size": model.stat().st_size,
        "sha256": source.sha256,
        "package": source.package,
        "version": source.version,
        "licence": source.licence,
        "state": _state(model),
    }
    _write_stamp(unpacked.with_name(STAMP), stamp, content)
    if source.sha256 is not None:
        remember_digest(model, source.sha256)
    return model


def _state(model: Path) -> list[int]:
    """Changes whenever somebody writes to the file or puts another one in its place."""
    stat = model.stat()
    return [stat.st_mtime_ns, stat.st_ino]


def _is_whole(model: Path, content: dict[str, Any], time: int) -> bool:
    """Whether the file has the stamp's checksum. The stamp is renewed and keeps its `time` (ns), or it is removed."""
    stamp, state = model.with_name(STAMP), _state(model)
    digest = read_digest(model)
    if digest != content.get("sha256"):
        _log.warning("%s is damaged: its checksum is another one than when it was pulled. It is pulled again.", model)
        stamp.unlink(missing_ok=True)
        return False
    try:
        _write_stamp(stamp.with_name(f"{STAMP}.{os.getpid()}"), stamp, content | {"state": state}, time)
    except OSError as error:  # a cache that may only be read
        _log.debug("%s: %s", model, error)
    return True


def _write_stamp(fresh: Path, stamp: Path, content: dict[str, Any], time: int | None = None) -> None:
    """Writes to `fresh` and renames it, so that no reader finds half of it."""
    try:
        fresh.write_text(json.dumps(content, indent=1))
        if time is not None:
            os.utime(fresh, ns=(time, time))
        fresh.replace(stamp)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
