"""What is wrong with a field's value, in words of JSON, from what msgspec says of Python's types. It reads no body."""

import re
from collections.abc import Iterator
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

EXPECTED = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
GOT = {**EXPECTED, "int": "a number", "null": "null"}
_FAULT = re.compile(r"Expected `(?P<kinds>[^`]*)`(?P<bounds>[^,]*)(?:, got `(?P<got>\w+)`)?")


def in_words(fault: str, kind: type[msgspec.Struct], field: str) -> str:
    """A sentence's end about the value of a field of the record `kind`: "it must be a list, not text"."""
    choices = list(_choices(get_type_hints(kind).get(field)))
    if choices:
        return f"it must be one of: {', '.join(map(str, choices))}"
    said = _FAULT.fullmatch(fault)
    if said is None:
        return f"{fault[:1].lower()}{fault[1:]}"
    kinds = [name for name in said["kinds"].split(" | ") if name != "null"]
    known = " or ".join(EXPECTED.get(name, name) for name in kinds)
    fraction = said["got"] == "float" and "int" in kinds  # it is a number, but not a whole one
    other = f", not {GOT.get(said['got'], said['got'])}" if said["got"] and not fraction else ""
    return f"it must be {known}{said['bounds']}{other}"


def _choices(kind: object) -> Iterator[object]:
    """The values of the Literal that a type is or holds."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
        return
    for inner in get_args(kind):
        yield from _choices(inner)
