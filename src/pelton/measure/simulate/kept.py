"""Slack kept in the cache folder, a file for each model, arithmetic, machine and build. It measures nothing.

Invariant: a file that is damaged, makes no sense or is another's counts as none; a reader sees a whole file or none.
"""

import hashlib
import logging
import math
import os
import tempfile
from dataclasses import astuple
from pathlib import Path

import msgspec

from pelton.backends.cpu.probe.figures import Identity
from pelton.core.environment import cache_folder
from pelton.measure.simulate.step_seconds import Curve, Rates, Slack
from pelton.program.coordinates import coordinates
from pelton.program.module import Module

FORMAT = 2  # of the file and of what is measured; another number makes all files old
_log = logging.getLogger("pelton")


class Calibrated(msgspec.Struct, frozen=True):
    """Slack, and the rates that its limits were made of. `date`: UTC. `busy`: equal steps took unlike times."""

    rates: Rates
    slack: Slack
    date: str
    busy: bool = False


class _File(msgspec.Struct, frozen=True):
    format: int
    key: str
    calibrated: Calibrated


def key_of(module: Module, identity: Identity, *, exact: bool) -> str:
    """Which model, arithmetic, machine and build this is."""
    known = (FORMAT, coordinates(module), exact, astuple(identity))
    return hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()


def kept_file(key: str) -> Path:
    """Where the figures of a key are kept."""
    return cache_folder() / "steps" / f"{key}.json"


def load(key: str) -> Calibrated | None:
    """What was kept; None where there is nothing that can be used."""
    path = kept_file(key)
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:  # most often: it is not there yet
        _log.debug("%s: %s", path, error)
        return None
    if kept.format != FORMAT or kept.key != key or not _sound(kept.calibrated):
        _log.debug("%s is of another model or machine, or damaged", path)
        return None
    return kept.calibrated


def save(key: str, calibrated: Calibrated) -> Path | None:
    """The file it is kept in; None where the cache folder cannot be written."""
    path = kept_file(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(_File(FORMAT, key, calibrated)) + b"\n")
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        _log.debug("%s cannot be written: %s", path, error)
        return None
    return path


def _sound(kept: Calibrated) -> bool:
    slack, rates = kept.slack, kept.rates
    curves = (slack.products, slack.attention, slack.head, slack.rest)
    seconds = (slack.attend_s, slack.around_s, slack.call_s, slack.row_s)
    return (
        all(map(_ascending, curves))
        and all(math.isfinite(one) and one >= 0 for one in seconds)
        and all(math.isfinite(one) and one > 0 for one in (rates.read, rates.products, rates.copy))
    )


def _ascending(curve: Curve) -> bool:
    counts = [count for count, _ in curve]
    good = all(count > 0 and math.isfinite(times) and times >= 0 for count, times in curve)
    return bool(curve) and good and counts == sorted(set(counts))
