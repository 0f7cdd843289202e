"""Registry: technique name -> "module:Class", resolved at first use, so that what is not chosen is never imported.

And Choice: how a setting writes a name with options of its own, "name:key=value,key=value". `str` of one reads back.
"""

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from pelton.core.errors import BackendError, SettingError, UnknownNameError

T = TypeVar("T")
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_SWITCHES = {"true": True, "false": False}


class Registry(Generic[T]):
    """Names of one kind of technique. Other packages add theirs by the entry-point group `pelton.<kind>`.

    `get` raises UnknownNameError listing the nearest and the known names. The package's own entries win over
    added ones.
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._loaded: dict[str, T] = {}
        self._plugins_read = False

    def names(self) -> list[str]:
        """All known names, sorted."""
        self._read_plugins()
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str) -> T:
        """The object registered under `name`; imports its module at first use.

        BackendError where that needs a package that is not installed.
        """
        if name in self._loaded:
            return self._loaded[name]
        if name not in self._entries:
            self._read_plugins()
        if name not in self._entries:
            raise self._unknown(name)
        module, _, attribute = self._entries[name].partition(":")
        try:
            value: T = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", __name__.partition(".")[0]):
                raise
            raise BackendError(
                f"{self.kind}={name!r} needs {package}, which is not installed.",
                f"Install it (pip install {package}), or leave the setting out.",
            ) from error
        self._loaded[name] = value
        return value

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        self._plugins_read = True
        for point in entry_points(group=f"pelton.{self.kind}"):
            self._entries.setdefault(point.name, point.value)

    def _unknown(self, name: str) -> UnknownNameError:
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        known = ", ".join(sorted(self._entries)) or "none"
        return UnknownNameError(f"Unknown {self.kind} {name!r}.", f"{hint}Known: {known}.")


@dataclass(frozen=True, slots=True)
class Choice:
    """What one setting asks for; `setting` is its name, for errors."""

    setting: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name

    def expect(self, known: Sequence[str]) -> None:
        """SettingError for an option that is none of these."""
        for key in self.options:
            if key not in known:
                raise self.error(f"{self.name} has no option {key!r}", f"It has {', '.join(known) or 'none'}.")

    def one_of(self, key: str, values: Sequence[int], default: int) -> int:
        """An option that is one of these numbers."""
        if key not in self.options:
            return default
        numbers = {str(value): value for value in values}
        if self.options[key] not in numbers:
            raise self.error(f"{key} cannot be {self.options[key]!r}", f"It must be one of {', '.join(numbers)}.")
        return numbers[self.options[key]]

    def switch(self, key: str, default: bool) -> bool:
        """An option that is true or false."""
        if key not in self.options:
            return default
        if self.options[key] not in _SWITCHES:
            raise self.error(f"{key} cannot be {self.options[key]!r}", "It must be true or false.")
        return _SWITCHES[self.options[key]]

    def error(self, cause: str, remedy: str) -> SettingError:
        """The SettingError for an impossible value."""
        return SettingError(f"{self.setting}={str(self)!r} cannot work: {cause}.", remedy)


def parse_choice(setting: str, text: str) -> Choice:
    """The setting's value in its parts; SettingError where it is not written so."""
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    parts = [part.partition("=") for part in rest.split(",")] if rest or text.endswith(":") else []
    good = _WORD.fullmatch(name) is not None
    for key, equals, value in parts:
        good = good and bool(equals) and _WORD.fullmatch(key) is not None and _WORD.fullmatch(value) is not None
        good = good and key not in options
        options[key] = value
    if not good:
        raise SettingError(
            f"{setting}={text!r} cannot work.", "It must be a name, or a name and options: name:key=value,key=value."
        )
    return Choice(setting, name, options)
