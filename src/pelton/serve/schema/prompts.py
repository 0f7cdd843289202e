"""The `prompt` of a completion as a list of prompts. Whether the model has the ids, others know.

Invariant: a list is read in one way only: of numbers it is one prompt, of texts or lists it is several.
"""

from pelton.core.errors import RequestError
from pelton.core.params import whole
from pelton.serve.schema.json_text import Json

Given = str | list[int]


def prompts_of(value: Json) -> list[Given]:
    """Text, ids, or several of either; RequestError naming the place of the first that is none."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _bad("prompt", "neither text nor a list")
    if not value:
        raise _bad("prompt", "empty")
    if isinstance(value[0], str):
        return [_text(f"prompt[{place}]", one) for place, one in enumerate(value)]
    if isinstance(value[0], list):
        return [_ids(f"prompt[{place}]", one) for place, one in enumerate(value)]
    return [_ids("prompt", value)]


def _text(where: str, value: Json) -> str:
    if not isinstance(value, str):
        raise _bad(where, "no text, unlike the first prompt")
    return value


def _ids(where: str, value: Json) -> list[int]:
    if not isinstance(value, list):
        raise _bad(where, "no list of ids, unlike the first prompt")
    for place, one in enumerate(value):
        if whole(one) is None:
            raise _bad(f"{where}[{place}]", "no token id")
    return value


def _bad(where: str, what: str) -> RequestError:
    return RequestError(f"{where} is {what}.", "Give text, a list of token ids, or a list of either.", param=where)
