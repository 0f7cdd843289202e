"""Figures kept in the cache folder, a file for each machine and build. It measures nothing.

Invariant: a file that is damaged, makes no sense, is old in form or another machine's counts as none; a reader sees a
whole file or none.
"""

import hashlib
import logging
import os
import tempfile
from dataclasses import astuple
from pathlib import Path

import msgspec

from pelton.backends.cpu.probe.figures import Identity, MachineProbe
from pelton.backends.cpu.probe.sound import sound
from pelton.core.environment import cache_folder

FORMAT = 1  # of the file and of what is measured; another number makes all files old
_log = logging.getLogger("pelton")


class _File(msgspec.Struct, frozen=True):
    format: int
    probe: MachineProbe


def probe_file(identity: Identity) -> Path:
    """Where figures of this machine and build are kept."""
    key = hashlib.blake2b(repr((FORMAT, astuple(identity))).encode(), digest_size=10).hexdigest()
    return cache_folder() / "probe" / f"{key}.json"


def load(identity: Identity) -> MachineProbe | None:
    """What was kept for this machine and build; None where there is nothing that can be used."""
    path = probe_file(identity)
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:  # most often: it is not there yet
        _log.debug("%s: %s", path, error)
        return None
    if kept.format != FORMAT or kept.probe.identity != identity:
        _log.debug("%s is not of this machine", path)
        return None
    if not sound(kept.probe):
        _log.debug("%s has figures that cannot be", path)
        return None
    return kept.probe


def save(probe: MachineProbe) -> Path | None:
    """The file it is kept in; None where the cache folder cannot be written."""
    path = probe_file(probe.identity)
    text = encode(probe)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        _log.debug("%s cannot be written: %s", path, error)
        return None
    return path


def encode(probe: MachineProbe) -> bytes:
    """As JSON, in the form of the file."""
    return msgspec.json.format(msgspec.json.encode(_File(FORMAT, probe)), indent=1) + b"\n"
