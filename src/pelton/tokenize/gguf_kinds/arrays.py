"""The arrays of a vocabulary in GGUF metadata, checked, and the parts of a tokenizer.json that all kinds share.

Invariant: of tokens that are written alike only the first is in the vocabulary; the others have no text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError
from pelton.tokenize.pretokenizer import Json

FIELD = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ADDED = (UNKNOWN, CONTROL, USER_DEFINED)  # found in a text before anything else is done to it


@dataclass(frozen=True)
class Tokens:
    """Texts and types of all tokens by id."""

    texts: Sequence[str]
    types: Sequence[int]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text -> id, the `vocab` section of a tokenizer.json."""
        found: dict[str, int] = {}
        for token_id, text in enumerate(self.texts):
            found.setdefault(text, token_id)
        return found

    def added(self, *, rstrip: frozenset[int] = frozenset()) -> list[Json]:
        """The `added_tokens` section; those in `rstrip` take the white space behind them."""
        return [
            _added_token(token_id, text, special=kind != USER_DEFINED, rstrip=token_id in rstrip)
            for token_id, (text, kind) in enumerate(zip(self.texts, self.types, strict=True))
            if kind in ADDED and text and self.ids[text] == token_id
        ]


def read_tokens(metadata: Mapping[str, object]) -> Tokens:
    """Texts and types; CheckpointError where they are missing or do not belong together."""
    texts = strings(metadata, "tokens")
    types = metadata.get(FIELD + "token_type")
    if not isinstance(types, (list, tuple)) or len(types) != len(texts):
        raise CheckpointError(f"{FIELD}token_type does not have one entry for each of the {len(texts)} tokens.")
    return Tokens(texts, types)


def strings(metadata: Mapping[str, object], name: str) -> Sequence[str]:
    """A list of text that must be there."""
    value = metadata.get(FIELD + name)
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{FIELD}{name} is missing or not a list of text.", "The file may be incomplete.")
    return value


def numbers(metadata: Mapping[str, object], name: str, count: int) -> Sequence[float]:
    """A list of `count` numbers that must be there."""
    value = metadata.get(FIELD + name)
    if not isinstance(value, (list, tuple)) or len(value) != count or not isinstance(value[0], (int, float)):
        raise CheckpointError(f"{FIELD}{name} does not have one number for each of the {count} tokens.")
    return value


def option(metadata: Mapping[str, object], name: str, *, default: bool) -> bool:
    """A truth value, if the file says it."""
    value = metadata.get(FIELD + name)
    return value if isinstance(value, bool) else default


def listed_merges(metadata: Mapping[str, object]) -> list[list[str]]:
    """The merges a file lists, best first, as pairs of tokens."""
    lines = strings(metadata, "merges")
    # The first part has at least one character, so a space at the very start belongs to it.
    cuts = [line.find(" ", 1) for line in lines]
    if -1 in cuts:
        raise CheckpointError(f"{FIELD}merges: {quoted(lines[cuts.index(-1)])} is not a pair of tokens.")
    return [[line[:cut], line[cut + 1 :]] for line, cut in zip(lines, cuts, strict=True)]


def bpe_section(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], **options: object) -> Json:
    """The `model` section of a tokenizer.json."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        **options,
        "merges": merges,
    }


def _added_token(token_id: int, text: str, *, special: bool, rstrip: bool) -> Json:
    flags = dict.fromkeys(("single_word", "lstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "rstrip": rstrip, "special": special}
