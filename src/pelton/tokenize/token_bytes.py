"""What bytes a token stands for, read from how a tokenizer writes its tokens. It joins nothing and skips no token.

Invariant: the bytes of all tokens of encode(text), joined, are the UTF-8 of the text the decoder would give.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from pelton.core.errors import UnsupportedModelError

SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MARKED_STEPS = {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are written. `to_bytes`: written form -> bytes; `strips_leading_space`: texts lose one in front."""

    to_bytes: Callable[[str], bytes]
    strips_leading_space: bool


def section(component: object) -> object:
    """A component of a `tokenizers` pipeline (or None) as the section of tokenizer.json it was read from."""
    return None if component is None else json.loads(component.__getstate__())  # type: ignore[arg-type]


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def spelling_of(decoder: object) -> Spelling:
    """The spelling that the `decoder` section of a tokenizer.json implies.

    Raises UnsupportedModelError for a decoder whose tokens have no bytes of their own.
    """
    steps = _steps(decoder)
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(_byte_level, strips_leading_space=False)
    if kinds and set(kinds) <= _MARKED_STEPS and all(_is_space_mark(s) for s in steps):
        falls_back = "ByteFallback" in kinds
        strips = [_strips(step) for step in steps]
        return Spelling(_marked_with_bytes if falls_back else _marked, strips_leading_space=any(strips))
    raise UnsupportedModelError(
        f"tokenizer.json: decoder {' + '.join(kinds) or 'null'} is not supported.",
        "Supported: ByteLevel, and Metaspace or Replace + ByteFallback + Fuse (+ Strip) with the space mark.",
    )


_ALPHABET = byte_alphabet()


def _byte_level(token: str) -> bytes:
    # An added token may hold characters outside the alphabet; it then stands for its own text.
    values = [_ALPHABET.get(char, -1) for char in token]
    return token.encode("utf-8", "replace") if -1 in values else bytes(values)


def _marked(token: str) -> bytes:
    return token.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def _marked_with_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else _marked(token)


def _steps(decoder: object) -> list[dict[str, object]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for step in decoder.get("decoders", []) if isinstance(step, dict)]
    return [decoder]


def _is_space_mark(step: dict[str, object]) -> bool:
    """Whether a step that turns something into spaces turns just the mark."""
    if step["type"] == "Metaspace":
        return step.get("replacement") == SPACE_MARK
    return step["type"] != "Replace" or (step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " ")


def _strips(step: dict[str, object]) -> bool:
    """Whether a step takes a leading space away. The library's Metaspace takes all those of the first token."""
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False
    if step["type"] != "Strip":
        return False
    if step.get("content") != " " or step.get("start") != 1 or step.get("stop") != 0:
        raise UnsupportedModelError(
            f"tokenizer.json: decoder step {step} is not supported.", "Only one leading space may go."
        )
    return True
