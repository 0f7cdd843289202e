"""Registry: technique name -> "module:Class", resolved at first use, so that what is not chosen is never imported."""

import difflib
import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from pelton.core.errors import BackendError, UnknownNameError

T = TypeVar("T")


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
