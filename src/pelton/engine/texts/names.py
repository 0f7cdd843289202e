"""Names and other texts that a caller gives: the text itself, or a RequestError that says what it is instead."""

from pelton.core.errors import RequestError
from pelton.core.words.unicode import expect_utf8


def name_of(param: str, value: object) -> str:
    """What `param` names, "" for None; see named."""
    return "" if value is None else named(param, value)


def named(param: str, value: object) -> str:
    """What `param` names. RequestError for what is no text, and for an empty one, as of a variable that nobody set."""
    name = well_formed(param, value)
    if not name:
        raise RequestError(f"{param} is empty.", "Give a name.", param=param)
    return name


def well_formed(param: str, text: object) -> str:
    """The text; RequestError for what is none, or holds half a character, which cannot be sent to another process."""
    if not isinstance(text, str):
        raise RequestError(f"{param} is {kind_of(text)}, not text.", param=param)
    expect_utf8(param, text)
    return text


def kind_of(value: object) -> str:
    """For the middle of a sentence."""
    return f"of type {type(value).__name__}"
