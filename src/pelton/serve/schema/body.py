"""A JSON object as records of its fields, and the names of those that no record knows.

Invariant: each field of the body is in a record, refused, a label, or told as ignored.
"""

import re
from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

import msgspec

from pelton.core.config import nearest
from pelton.core.errors import RequestError
from pelton.sampling.refused import REFUSED
from pelton.serve.schema.faults import in_words
from pelton.serve.schema.fields import NESTED
from pelton.serve.schema.json_text import Json
from pelton.serve.schema.refused import LABELS, NEUTRAL, check_refused

Record = TypeVar("Record", bound=msgspec.Struct)
_PLACE = re.compile(r"^(?P<fault>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
IGNORED = "X-Pelton-Ignored"  # the header of what took no effect
_MOST_TOLD = 32  # names in the header of ignored fields
_EXACT = 2.0**53  # below it floats are whole numbers one by one
_SHOWN = 60  # characters of a value in an error


class Body:
    """One request's JSON object; `strict`: unknown fields are refused. RequestError for fields that are not done.

    `hints`: fields that take no effect and are told, but never refused.

    `ignored`: names of what takes no effect, of what stands in a field as "field.name".
    """

    def __init__(
        self,
        fields: Mapping[str, Json],
        *,
        strict: bool,
        known: tuple[type[msgspec.Struct], ...],
        hints: Set[str] = frozenset(),
    ) -> None:
        names = {name for kind in known for name in kind.__struct_fields__}
        self._unknown = [name for name in fields if name not in names]
        try:
            check_refused(fields, names)
        except RequestError as error:  # for what it means elsewhere, though here it may be a field's name cut short
            needed = {field.name for kind in known for field in msgspec.structs.fields(kind) if field.required}
            cut = next((name for name in sorted(needed - fields.keys()) if self._tail(name) == error.param), None)
            raise self._missing(cut) if cut else error from error.__cause__
        # JSON knows no whole numbers: 2.0 is 2, which many clients write so.
        self._fields = {name: _whole(value) for name, value in fields.items()}
        self.ignored: tuple[str, ...] = ()
        self._strict = strict
        self.ignore(sorted(fields.keys() - names - hints - LABELS - NEUTRAL.keys() - REFUSED.keys()))
        self.ignored += tuple(sorted(fields.keys() & hints))
        for name in NESTED.keys() & names:
            inner = fields.get(name)
            if isinstance(inner, Mapping):
                unknown = sorted(inner.keys() - set(NESTED[name].__struct_fields__))
                self.ignore(f"{name}.{key}" for key in unknown if inner[key] is not None)

    def ignore(self, names: Iterable[str]) -> None:
        """These take no effect: they are told, or with `strict` the first is refused by a RequestError."""
        more = tuple(names)
        if self._strict and more:
            raise RequestError(
                f"The field {_shown(more[0])} is unknown.",
                "Leave it out; this server takes only fields that it knows.",
                param=more[0][:_SHOWN],
                code="unknown_parameter",
            )
        self.ignored += more

    def read(self, kind: type[Record]) -> Record:
        """The fields of one record; RequestError naming the first that is missing or of a wrong type or range."""
        try:
            return msgspec.convert(self._fields, kind)
        except msgspec.ValidationError as error:
            raise self._fault(kind, str(error)) from error
        except RecursionError as error:
            raise RequestError("The body is nested too deeply.", "Send JSON of fewer levels.") from error

    def _fault(self, kind: type[msgspec.Struct], text: str) -> RequestError:
        found = _PLACE.match(text)
        fault, path = (found["fault"], (found["path"] or "").lstrip(".")) if found else (text, "")
        missing = re.search(r"missing required field `(\w+)`", fault)
        if missing:
            return self._missing(f"{path}.{missing[1]}".lstrip("."))
        top = re.split(r"[.\[]", path, maxsplit=1)[0]
        value = self._fields.get(top)
        where = path
        if path == f"{top}[...]" and isinstance(value, dict):
            where, path = f"{top}[{_shown(_culprit(kind, top, value))}]", top
        elif path == top and not isinstance(value, list | dict):
            where = f"{path}={_shown(value)}"
        return RequestError(f"{where} cannot be used: {in_words(fault, kind, path)}.", param=path or None)

    def _missing(self, name: str) -> RequestError:
        meant = self._tail(name) or nearest(name, self._unknown)
        remedy = f"Rename {_shown(meant)} to {name}." if meant else f"Give {name}."
        return RequestError(f"{name} is missing.", remedy, param=name, code="missing_parameter")

    def _tail(self, name: str) -> str:
        """The unknown field whose name is the last words of this one: prefix of input_prefix; "": none is."""
        return next((unknown for unknown in self._unknown if name.endswith(f"_{unknown}")), "")


def _culprit(kind: type[msgspec.Struct], name: str, table: dict[str, Json]) -> str:
    """The first key of the field `name` whose value cannot be, which msgspec does not tell."""
    for key, value in table.items():
        try:
            msgspec.convert({name: {key: value}}, kind)
        except msgspec.ValidationError:
            return key
    return "..."


def told_of(ignored: tuple[str, ...]) -> dict[str, str]:
    """The header that tells what took no effect, if anything did not."""
    return {IGNORED: told(ignored)} if ignored else {}


def told(names: tuple[str, ...]) -> str:
    """Names of fields as the value of a header: ASCII without line breaks, whatever the client wrote."""
    shown = [name[:_SHOWN] if name.isascii() and name.isprintable() else ascii(name[:_SHOWN]) for name in names]
    more = [f"and {len(shown) - _MOST_TOLD} more"] if len(shown) > _MOST_TOLD else []
    return ", ".join(shown[:_MOST_TOLD] + more)


def _whole(value: Json) -> Json:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
