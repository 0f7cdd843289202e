"""Figures kept in the cache folder, a file for each machine and build. It measures nothing.

Invariant: a file that is damaged, makes no sense, is old in form or another machine's counts as none.
"""

import hashlib
import logging
from dataclasses import astuple
from pathlib import Path

import msgspec

from pelton.backends.cpu.probe.figures import Identity, MachineProbe
from pelton.backends.cpu.probe.sound import sound
from pelton.core.cache import kept_file
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
    kept = kept_file.load_json(path, _File)
    if kept is None:
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
    return kept_file.save(probe_file(probe.identity), encode(probe))


def encode(probe: MachineProbe) -> bytes:
    """As JSON, in the form of the file."""
    return msgspec.json.format(msgspec.json.encode(_File(FORMAT, probe)), indent=1) + b"\n"
