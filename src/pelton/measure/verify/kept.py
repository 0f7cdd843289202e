"""A run of verify kept in a file as it goes, so that a later call goes on where it stopped and tells the whole.

It runs and compares nothing. Invariant: a file holds whole schedules only, and goes on with the same model, settings,
prompts and seed, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

import pelton
from pelton.core.clock import Clock
from pelton.core.errors import SettingError
from pelton.measure.verify.cases import Cases
from pelton.measure.verify.dimension import Dimension
from pelton.measure.verify.report import Report

SAVE_SECONDS = 20.0  # at most this much is lost when a run is killed
PART = ".part"
DIGITS = 16  # of a digest


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds, as JSON."""

    facts: dict[str, str]
    report: Report


def facts_of(
    model: str, dtype: str, backend: str, seed: int, cases: Cases, over: Mapping[str, Dimension], fingerprint: bytes
) -> dict[str, str]:
    """All that must be the same for schedules of two runs to add up. `over`: dimensions. `fingerprint`: of all that
    decides the bits beside the tokens, as in EngineParts.
    """
    return {
        "model": model,
        "dtype": dtype,
        "backend": backend,
        "seed": str(seed),
        "max_tokens": str(cases.max_tokens),
        "prompts": _digest([(prompt.name, prompt.token_ids) for prompt in cases.prompts]),
        "dimensions": _digest([(name, dimension.values) for name, dimension in over.items()]),
        "version": pelton.__version__,
        # Last: what has a name of its own is told by that.
        "computation": fingerprint.hex()[:DIGITS],
    }


def _digest(value: object) -> str:
    return sha256(repr(value).encode()).hexdigest()[:DIGITS]


class Kept:
    """`before`: the report of what was run before, where there is any. `source`: what the file is called in errors.

    SettingError where it is no such file, or another run's, or cannot be written.
    """

    def __init__(self, path: Path, source: str, facts: Mapping[str, str], clock: Clock) -> None:
        self._path = path
        self._source = source
        self._facts = dict(facts)
        self._clock = clock
        self.before = self._load() if path.exists() else None
        self._saved = clock.now()

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return self._clock.now() - self._saved >= SAVE_SECONDS

    def save(self, report: Report) -> None:
        """Whole or not at all."""
        part = self._path.with_name(self._path.name + PART)
        try:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(_Content(self._facts, report)), indent=1))
            part.replace(self._path)
        except OSError as error:
            raise SettingError(f"{self._source} cannot be written: {error}.", "Name a file that can.") from error
        self._saved = self._clock.now()

    def _load(self) -> Report:
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except (OSError, msgspec.DecodeError) as error:
            why = f": {error.strerror}" if isinstance(error, OSError) else ""
            cause = f"{self._source} is no file that pelton verify wrote{why}."
            raise SettingError(cause, "Name another file.") from error
        for name, value in self._facts.items():
            before = content.facts.get(name)
            if before != value:
                cause = f"{self._source} is of another run: {name} was {before}, and now it is {value}."
                raise SettingError(cause, "Name another file, or run with what that one was begun with.")
        return content.report
