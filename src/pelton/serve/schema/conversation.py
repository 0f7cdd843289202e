"""Messages as clients send them, made into what a chat template takes. It renders nothing.

Invariant: what comes out has text contents only; whatever a text model cannot take is refused by its place.
"""

from collections.abc import Container, Iterator, Mapping

from pelton.core.errors import RequestError
from pelton.serve.schema.json_text import Json

_TOOL_ROLES = ("tool", "function")
_TOOL_KEYS = ("tool_calls", "function_call", "audio")
_PARTS = ("text", "input_text", "output_text", "refusal")
_READ = ("role", "content", *_TOOL_KEYS)


def conversation(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """The messages with their contents as text: parts joined by line breaks, null as empty text."""
    if not messages:
        raise RequestError("messages is empty.", 'Give at least {"role": "user", "content": "..."}.', param="messages")
    return [_message(f"messages[{place}]", message) for place, message in enumerate(messages)]


def unread(messages: list[dict[str, Json]], seen: Container[str]) -> Iterator[str]:
    """Where something stands in messages (that `conversation` took) that nobody reads: the template reads `seen`."""
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        for key in sorted(message):
            if key not in _READ and message[key] not in (None, []) and key not in seen:
                yield f"{where}.{key}"
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping):
                known = ("type", "refusal" if part["type"] == "refusal" else "text")
                yield from (
                    f"{where}.content[{number}].{key}"
                    for key in sorted(part)
                    if key not in known and part[key] not in (None, [])
                )


def _message(where: str, message: dict[str, Json]) -> dict[str, Json]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role is missing or no text.", "Give a role such as user.", param=f"{where}.role")
    if role in _TOOL_ROLES:
        raise _unsupported(f"{where}.role", f"the role {role!r}")
    for name in _TOOL_KEYS:
        if message.get(name):
            raise _unsupported(f"{where}.{name}", name)
    return {**message, "content": _content(f"{where}.content", message.get("content"), role)}


def _content(where: str, content: Json, role: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if isinstance(content, list) and content:
        return "\n".join(_part(f"{where}[{place}]", part) for place, part in enumerate(content))
    what = "missing" if content is None else "empty" if content == [] else "neither text nor a list of parts"
    raise RequestError(f"{where} is {what}.", "Give text.", param=where)


def _part(where: str, part: Json) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise RequestError(f"{where} has no type.", 'Give {"type": "text", "text": "..."}.', param=where)
    kind = part["type"]
    if kind not in _PARTS:
        raise _unsupported(where, f"content of the type {kind[:40]!r}")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text is missing or no text.", "Give text.", param=f"{where}.text")
    return text


def _unsupported(where: str, what: str) -> RequestError:
    return RequestError(
        f"{where}: {what} is not supported.", "Send text alone.", param=where, code="unsupported_parameter"
    )
