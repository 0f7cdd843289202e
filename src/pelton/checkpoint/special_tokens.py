"""The special tokens a checkpoint names, gathered from its configs or its GGUF metadata. Tokenises nothing.

What a checkpoint leaves unsaid is None; the tokenizer knows texts for ids and ids for texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.checkpoint.gguf import GgufFile
from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

Config = Mapping[str, Any]
TOKENS = "tokenizer.ggml.tokens"
MAX_DIGITS = 10  # of a token id


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Texts and ids; `eos_ids`: every token that ends an answer. `add_bos`: whether text gets bos in front, if said."""

    bos_token: str | None = None
    bos_id: int | None = None
    eos_token: str | None = None
    eos_id: int | None = None
    pad_token: str | None = None
    pad_id: int | None = None
    unk_token: str | None = None
    unk_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool | None = None


def from_gguf(gguf: GgufFile, generation: Config) -> SpecialTokens:
    """Ids from the metadata, their texts from the vocabulary. An id outside the vocabulary raises CheckpointError."""
    metadata = gguf.metadata
    add_bos = metadata.get("tokenizer.ggml.add_bos_token")
    ids = {
        "bos": generation.get("bos_token_id"),
        "eos": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad": generation.get("pad_token_id"),
        "unk": metadata.get("tokenizer.ggml.unknown_token_id"),
    }
    fields: dict[str, Any] = {}
    for role, token in ids.items():
        if isinstance(token, int):
            fields |= {f"{role}_id": token, f"{role}_token": _text(gguf, role, token)}
    ends = _ids(generation.get("eos_token_id"), "eos_token_id", gguf.file.path)
    return SpecialTokens(**fields, eos_ids=ends, add_bos=add_bos if isinstance(add_bos, bool) else None)


def from_folder(folder: Path, config: Config, generation: Config, tokenizer: Config) -> SpecialTokens:
    """From config.json, generation_config.json (wins for the ends of an answer) and tokenizer_config.json."""
    known = {
        text: int(token)
        for token, entry in _mapping(tokenizer.get("added_tokens_decoder")).items()
        if (text := _content(entry)) is not None and token.isdecimal() and len(token) <= MAX_DIGITS
    }
    fields: dict[str, Any] = {}
    for role in ("bos", "eos", "pad", "unk"):
        text = _content(tokenizer.get(f"{role}_token"))
        ids = _ids(config.get(f"{role}_token_id"), f"{role}_token_id", folder / "config.json")
        fields[f"{role}_token"] = text
        fields[f"{role}_id"] = known.get(text, ids[0] if ids else None) if text else ids[0] if ids else None
    ends = _ids(generation.get("eos_token_id"), "eos_token_id", folder / "generation_config.json")
    if not ends:
        ends = _ids(config.get("eos_token_id"), "eos_token_id", folder / "config.json")
    add_bos = tokenizer.get("add_bos_token")
    return SpecialTokens(**fields, eos_ids=ends, add_bos=add_bos if isinstance(add_bos, bool) else None)


def _text(gguf: GgufFile, role: str, token: int) -> str | None:
    count = gguf.metadata.count(TOKENS)
    if count == 0:
        return None
    if token >= count:
        raise gguf.file.error(f"the {role} token is {token}, but the vocabulary has {count} tokens")
    text = gguf.metadata.element(TOKENS, token)
    return text if isinstance(text, str) else None


def _ids(value: object, name: str, path: Path) -> tuple[int, ...]:
    """A token id, a list of them or null."""
    given = value if isinstance(value, list) else [] if value is None else [value]
    for token in given:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise CheckpointError(f"{path}: {name} is {quoted(value)}, not token ids.", "Correct it in the file.")
    return tuple(given)


def _content(entry: object) -> str | None:
    """A token's text, written as a string or as a record of an added token."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
