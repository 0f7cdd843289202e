"""A JSON object as records of its fields, and the names of those that no record knows.

Invariant: each field of the body is in a record, refused, a label, or told as ignored.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from pelton.core.errors import RequestError
from pelton.sampling.refused import REFUSED
from pelton.serve.schema.json_text import Json
from pelton.serve.schema.refused import LABELS, NEUTRAL, check_refused

Record = TypeVar("Record", bound=msgspec.Struct)
_PLACE = re.compile(r"^(?P<fault>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_MOST_TOLD = 32  # names in the header of ignored fields
_EXACT = 2.0**53  # below it floats are whole numbers one by one
_SHOWN = 60  # characters of a value in an error


class Body:
    """One request's JSON object; `strict`: unknown fields are refused. RequestError for fields that are not done."""

    def __init__(self, fields: Mapping[str, Json], *, strict: bool, known: tuple[type[msgspec.Struct], ...]) -> None:
        check_refused(fields)
        # JSON knows no whole numbers: 2.0 is 2, which many clients write so.
        self._fields = {name: _whole(value) for name, value in fields.items()}
        names = {name for kind in known for name in kind.__struct_fields__}
        self.ignored = tuple(sorted(fields.keys() - names - LABELS - NEUTRAL.keys() - REFUSED.keys()))
        if strict and self.ignored:
            raise RequestError(
                f"The field {_shown(self.ignored[0])} is unknown.",
                "Leave it out; this server takes only fields that it knows.",
                param=self.ignored[0][:_SHOWN],
                code="unknown_parameter",
            )

    def read(self, kind: type[Record]) -> Record:
        """The fields of one record; RequestError naming the first that is missing or of a wrong type or range."""
        try:
            return msgspec.convert(self._fields, kind)
        except msgspec.ValidationError as error:
            raise self._fault(str(error)) from error
        except RecursionError as error:
            raise RequestError("The body is nested too deeply.", "Send JSON of fewer levels.") from error

    def _fault(self, text: str) -> RequestError:
        found = _PLACE.match(text)
        fault, path = (found["fault"], (found["path"] or "").lstrip(".")) if found else (text, "")
        missing = re.search(r"missing required field `(\w+)`", fault)
        if missing:
            name = f"{path}.{missing[1]}".lstrip(".")
            return RequestError(f"{name} is missing.", f"Give {name}.", param=name, code="missing_parameter")
        top = re.split(r"[.\[]", path, maxsplit=1)[0]
        value = self._fields.get(top)
        where = f"{path}={_shown(value)}" if path == top and not isinstance(value, list | dict) else path
        return RequestError(f"{where} cannot be used: {fault[:1].lower()}{fault[1:]}.", param=path or None)


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
