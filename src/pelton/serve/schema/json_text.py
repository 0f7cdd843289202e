"""Bytes of a request as JSON. It knows no field.

Invariant: what comes out holds only finite numbers and text that UTF-8 can carry; anything else is a RequestError.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pelton.core.errors import RequestError

Json = Any  # what a JSON text holds; narrowed by whoever reads it
_NAME = re.compile(rb'[\s,]*"[^"\\]*(?:\\.[^"\\]*)*"\s*:\s*', re.DOTALL)  # of a field, with what stands around it
_END = re.compile(rb"\s*}")
MOST_TOLD = 40  # characters of a key
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_object(raw: bytes) -> dict[str, Json]:
    """The body's JSON object; RequestError for anything else, `param` naming the field if the fault lies in one.

    So for a field that is given twice, and for one that is a table and names a key twice, of which decoding would keep
    the last one only.
    """
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"The body holds a number that is out of range ({error}).", "Send finite numbers."
        ) from error
    except msgspec.DecodeError as error:
        raise _surrogate(raw) or RequestError(
            f"The body is not JSON: {error}.", "Send one JSON object, in UTF-8."
        ) from error
    except RecursionError as error:
        raise RequestError("The body is nested too deeply.", "Send JSON of fewer levels.") from error
    if not isinstance(value, dict):
        raise RequestError(f"The body is JSON, but {_kind(value)}.", "Send one JSON object.")
    parts = {name: bytes(part) for name, part in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items()}
    if not _are_all(parts, raw):
        _check_keys(raw, None)
    for name, field in value.items():
        if isinstance(field, dict) and field:
            _check_keys(parts[name], name)
    return value


def _are_all(parts: Mapping[str, bytes], raw: bytes) -> bool:
    """Whether the object `raw` consists of these fields, each with its value's bytes; not if it has more.

    Of a name given twice the decoder keeps the first place and the last value, so the fields do not follow each other.
    This costs a look at each name, however long the values are.
    """
    place = raw.index(b"{") + 1
    for part in parts.values():
        name = _NAME.match(raw, place)
        if name is None or not raw.startswith(part, name.end()):
            return False
        place = name.end() + len(part)
    return _END.match(raw, place) is not None


def _check_keys(table: bytes, name: str | None) -> None:
    """RequestError for a key that an object has twice. `name`: the field that is the object, None: the body itself."""
    where = name or "The body"
    seen: set[str] = set()
    try:
        pairs = json.loads(table, object_pairs_hook=list, parse_int=str)  # as text: of any length
    except RecursionError as error:
        raise RequestError(f"{where} is nested too deeply.", "Send JSON of fewer levels.", param=name) from error
    for key, _ in pairs:
        if key in seen:
            told = key[:MOST_TOLD]
            raise RequestError(f"{where} holds {told!r} twice.", "Give it once.", param=name or told)
        seen.add(key)


def _surrogate(raw: bytes) -> RequestError | None:
    """What is wrong if the only fault is a lone surrogate, which the decoder tells by its byte alone."""
    if _ESCAPED_SURROGATE.search(raw) is None:
        return None
    try:
        value = json.loads(raw)
        for path, text in _texts("", value):
            place = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
            if place is not None:
                return RequestError(
                    f"{path or 'The body'} holds the lone surrogate U+{ord(text[place]):04X} at character {place}.",
                    "Send well-formed Unicode text.",
                    param=path or None,
                )
    except (ValueError, RecursionError):
        return None
    return None


def _texts(path: str, value: Json) -> Iterator[tuple[str, str]]:
    """(path, text) of every text in a JSON value, keys among them (by the path of what holds them)."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield path, key
            yield from _texts(f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _texts(f"{path}[{place}]", inner)


def _kind(value: Json) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "null")
