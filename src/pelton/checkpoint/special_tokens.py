"""The special tokens a checkpoint names, gathered from its configs or its GGUF metadata. Tokenises nothing.

What a checkpoint leaves unsaid is None; the tokenizer knows texts for ids and ids for texts.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.checkpoint.gguf import GgufFile
from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

Config = Mapping[str, Any]
TOKENS = "tokenizer.ggml.tokens"
TOKENIZER, ADDED = "tokenizer.json", '"added_tokens"'
MAX_DIGITS = 10  # of a token id

# Tokens that end a turn. Files name one end of an answer, often that of training; the chat template shows the other.
TURN_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|return|>", "<|call|>",
    "<|eot|>", "<|end_of_text|>", "<|endoftext|>", "<|END_OF_TURN_TOKEN|>", "<EOT>", "[EOT]", "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
NO_END_BESIDE = {"<|return|>": "<|end|>"}  # where the first ends an answer, the second only ends a part of it

# How families write the fill-in-the-middle tokens: prefix, suffix, middle. The first that a vocabulary has counts.
FIM_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite 3
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon-H1
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),  # Codestral
)
SUFFIX_FIRST = ("[PREFIX]",)  # such models read the suffix first and have no mark for the middle
FIM_MORE = (
    ("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),  # pad
    ("<|repo_name|>", "<repo_name>", "<reponame>"),  # repo
    ("<|file_sep|>", "<file_sep>", "<|file_separator|>"),  # separator
)
# Role -> the keys of GGUF metadata that name it, the older ones last.
FIM_KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repo": ("fim_rep_token_id",),
    "separator": ("fim_sep_token_id",),
}


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Ids of the tokens that mark what stands around a gap; `repo` and `separator`: before the names of other files.

    `pad` fills batches in training; a model may end an answer with it. `suffix_first`: see prompt().
    """

    prefix: int
    suffix: int
    middle: int
    pad: int | None = None
    repo: int | None = None
    separator: int | None = None
    suffix_first: bool = False

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Token ids of a prompt whose answer fills the gap between `before` and `after`; no BOS is added."""
        if self.suffix_first:
            return [self.suffix, *after, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *after, self.middle]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Texts and ids; `eos_ids`: every token that ends an answer. `add_bos`: whether text gets bos in front, if said.

    `fim`: the fill-in-the-middle tokens of a model that was trained with them, else None.
    """

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
    fim: FimTokens | None = None


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
    ends = _with_turn_ends(gguf, _ids(generation.get("eos_token_id"), "eos_token_id", gguf.file.path))
    return SpecialTokens(
        **fields, eos_ids=ends, add_bos=add_bos if isinstance(add_bos, bool) else None, fim=_fim_of_gguf(gguf)
    )


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
    fim = _fim_by_text((known or _added_tokens(folder / TOKENIZER)).get)
    return SpecialTokens(**fields, eos_ids=ends, add_bos=add_bos if isinstance(add_bos, bool) else None, fim=fim)


def _with_turn_ends(gguf: GgufFile, ends: tuple[int, ...]) -> tuple[int, ...]:
    """`ends` and those tokens of TURN_ENDS that the file's chat template writes."""
    template = gguf.metadata.get("tokenizer.chat_template")
    written = [text for text in TURN_ENDS if text in template] if isinstance(template, str) else []
    parts = {NO_END_BESIDE.get(text) for text in written}
    found = gguf.metadata.indices(TOKENS, [text for text in written if text not in parts])
    return tuple(dict.fromkeys((*ends, *found.values())))


def _fim_of_gguf(gguf: GgufFile) -> FimTokens | None:
    """By the metadata's ids, else by how the tokens are written."""
    metadata, count = gguf.metadata, gguf.metadata.count(TOKENS)
    ids: dict[str, int] = {}
    for role, keys in FIM_KEYS.items():
        named = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
        given = next((token for token in named if isinstance(token, int)), None)
        if given is not None and given < count:
            ids[role] = given
    if ids.keys() >= {"prefix", "suffix", "middle"}:
        prefix, suffix, middle = ids["prefix"], ids["suffix"], ids["middle"]
        suffix_first = metadata.element(TOKENS, prefix) in SUFFIX_FIRST
        return FimTokens(prefix, suffix, middle, ids.get("pad"), ids.get("repo"), ids.get("separator"), suffix_first)
    firsts = metadata.indices(TOKENS, [prefix for prefix, _, _ in FIM_TEXTS])
    if not firsts:
        return None
    rest = [text for texts in FIM_TEXTS if texts[0] in firsts for text in texts[1:]]
    others = metadata.indices(TOKENS, [*rest, *(text for texts in FIM_MORE for text in texts)])
    return _fim_by_text((firsts | others).get)


def _fim_by_text(id_of: Callable[[str], int | None]) -> FimTokens | None:
    for texts in FIM_TEXTS:
        ids = [token for text in texts if (token := id_of(text)) is not None]
        if len(ids) == len(texts):
            prefix, suffix, middle = ids
            pad, repo, separator = (_first(id_of, spellings) for spellings in FIM_MORE)
            return FimTokens(prefix, suffix, middle, pad, repo, separator, texts[0] in SUFFIX_FIRST)
    return None


def _first(id_of: Callable[[str], int | None], texts: Iterable[str]) -> int | None:
    return next((token for text in texts if (token := id_of(text)) is not None), None)


def _added_tokens(path: Path) -> dict[str, int]:
    """Text -> id of the added tokens in a tokenizer.json, whose long lists are not parsed; {} where it has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # whoever builds the tokenizer says what is wrong with it
        return {}
    at = text.find(ADDED)
    while at >= 0:
        start = text.find("[", at)
        if text[at + len(ADDED) : start].strip() == ":":
            break
        at = text.find(ADDED, at + 1)
    try:
        entries = json.JSONDecoder().raw_decode(text, start)[0] if at >= 0 else []
    except (ValueError, RecursionError):
        return {}
    ids = {_content(entry): entry.get("id") for entry in entries if isinstance(entry, dict)}
    return {text: token for text, token in ids.items() if isinstance(text, str) and isinstance(token, int)}


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
