"""Slack kept in the cache folder, a file for each model, arithmetic, machine and build. It measures nothing.

Invariant: a file that is damaged, makes no sense or is another's counts as none.
"""

import hashlib
import logging
import math
from dataclasses import astuple
from pathlib import Path

import msgspec

from pelton.backends.cpu.probe.figures import Identity
from pelton.core.cache import kept_file
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


def steps_file(key: str) -> Path:
    """Where the figures of a key are kept."""
    return cache_folder() / "steps" / f"{key}.json"


def load(key: str) -> Calibrated | None:
    """What was kept; None where there is nothing that can be used."""
    path = steps_file(key)
    kept = kept_file.load_json(path, _File)
    if kept is None:
        return None
    if kept.format != FORMAT or kept.key != key or not _sound(kept.calibrated):
        _log.debug("%s is of another model or machine, or damaged", path)
        return None
    return kept.calibrated


def save(key: str, calibrated: Calibrated) -> Path | None:
    """The file it is kept in; None where the cache folder cannot be written."""
    return kept_file.save(steps_file(key), msgspec.json.encode(_File(FORMAT, key, calibrated)) + b"\n")


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
