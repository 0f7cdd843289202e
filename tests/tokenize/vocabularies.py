"""Small vocabularies made on the spot, and GGUF metadata out of a tokenizer.json: inputs of the tests, no goldens."""

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.tokenize.gguf_vocab import vocabulary_of
from pelton.tokenize.token_bytes import byte_alphabet
from pelton.tokenize.tokenizer import Tokenizer

FIELD = "tokenizer.ggml."
ARRAYS = frozenset(FIELD + name for name in ("tokens", "token_type", "merges", "scores"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIALS = ["<|start|>", "<|end|>"]


def byte_level_metadata(pre: str = "smollm") -> dict[str, object]:
    """Two control tokens, 256 bytes, "he", "hel", and the user-defined "<think>"."""
    tokens = [*SPECIALS, *byte_alphabet(), "he", "hel", "<think>"]
    return {
        FIELD + "model": "gpt2",
        FIELD + "pre": pre,
        FIELD + "tokens": tuple(tokens),
        FIELD + "token_type": (CONTROL, CONTROL, *[NORMAL] * 258, USER_DEFINED),
        FIELD + "merges": ("h e", "he l"),
        FIELD + "bos_token_id": 0,
    }


def space_marked_metadata(pieces: Sequence[str], **fields: object) -> dict[str, object]:
    """<unk>, <s>, </s>, 256 bytes, the pieces (the better ones first) and the user-defined "<think>"."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<think>"]
    return {
        FIELD + "model": "llama",
        FIELD + "pre": "default",
        FIELD + "tokens": tuple(tokens),
        FIELD + "scores": (*[0.0] * 259, *[-1.0 - place for place in range(len(pieces))], -1000.0),
        FIELD + "token_type": (UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER_DEFINED),
        FIELD + "bos_token_id": 1,
        FIELD + "unknown_token_id": 0,
        **{FIELD + name: value for name, value in fields.items()},
    }


def metadata_of(tokenizer_json: Mapping[str, dict], pre: str) -> dict[str, object]:
    """What a GGUF made from this tokenizer.json would say."""
    model = tokenizer_json["model"]
    by_id = {token_id: (token, NORMAL) for token, token_id in model["vocab"].items()}
    for token in tokenizer_json["added_tokens"]:
        by_id[token["id"]] = (token["content"], CONTROL if token["special"] else USER_DEFINED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        FIELD + "model": "gpt2",
        FIELD + "pre": pre,
        FIELD + "tokens": [by_id[token_id][0] for token_id in range(len(by_id))],
        FIELD + "token_type": [by_id[token_id][1] for token_id in range(len(by_id))],
        FIELD + "merges": merges,
    }


def packed_tokenizer_json(data: Path, name: str) -> dict:
    """A real tokenizer.json of the test data."""
    with lzma.open(data / "tokenizer" / "vocab" / f"{name}.tokenizer.json.xz") as file:
        return json.load(file)


def torture_rows(data: Path, goldens: str, **wanted: str) -> Iterator[tuple[str, dict]]:
    """(text, golden row) of the torture strings for the rows that have the wanted values."""
    texts = {row["id"]: row["text"] for row in json_lines(data / "tokenizer" / "torture_strings.jsonl")}
    for row in json_lines(data / "tokenizer" / goldens):
        if all(row[key] == value for key, value in wanted.items()):
            yield texts[row["id"]], row


def json_lines(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def space_marked(*, strip: bool = True, post_bos: bool = False) -> tokenizers.Tokenizer:
    """A vocabulary in SentencePiece's spelling: space marks, bytes as <0xHH>, <s> and </s>."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab", "\u00e9"]
    vocabulary = {token: token_id for token_id, token in enumerate([*names, *pieces])}
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581a", "b")]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    inner.add_special_tokens(names[:3])
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    steps = [
        tokenizers.decoders.Replace("\u2581", " "),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(),
        *([tokenizers.decoders.Strip(" ", 1, 0)] if strip else []),
    ]
    inner.decoder = tokenizers.decoders.Sequence(steps)
    if post_bos:
        inner.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return inner


def built(metadata: Mapping[str, object], **options: Any) -> Tokenizer:
    """A tokenizer from GGUF metadata, without the cache folder."""
    content = vocabulary_of(metadata).tokenizer_json(metadata)
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), **options)


def tiny_tokenizer(*, add_bos: bool | None = None) -> Tokenizer:
    """byte_level_metadata() as a tokenizer."""
    return built(byte_level_metadata(), bos_id=0, add_bos=add_bos)


def flagged() -> tokenizers.Tokenizer:
    """Special and user-defined tokens of all kinds of matching, some of them in each other's text."""
    inner = space_marked()
    inner.add_tokens(
        [
            tokenizers.AddedToken("<a>", special=True, lstrip=True),
            tokenizers.AddedToken("<a>b", special=False, rstrip=True),
            tokenizers.AddedToken("ab", special=True, single_word=True),
            tokenizers.AddedToken("<b>", special=True, normalized=True),
            tokenizers.AddedToken("a <b", special=False, normalized=True),
        ]
    )
    return inner


def check_plain_text(tokenizer: Tokenizer) -> None:
    """Texts made of the added tokens' pieces have the ids of a whole copy to which special tokens are text."""
    copy = tokenizers.Tokenizer.from_str(tokenizer._inner.to_str())
    copy.encode_special_tokens = True
    added = [token.content for token in copy.get_added_tokens_decoder().values()]
    whole = st.sampled_from(added)
    cut = st.builds(lambda text, size: text[: 1 + size % len(text)], whole, st.integers(0, 20))
    piece = whole | cut | st.sampled_from([" ", "\n", "a", "b", " the", "\u00e9", "\u4e2d"]) | st.text(max_size=3)

    @given(st.lists(piece, max_size=8).map("".join))
    def check(text: str) -> None:
        assert tokenizer.encode(text) == copy.encode(text, add_special_tokens=False).ids

    check()


@lru_cache(maxsize=1)
def packed_tokenizer(data: Path, name: str) -> Tokenizer:
    """A real tokenizer.json of the test data as a tokenizer."""
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(packed_tokenizer_json(data, name))))


def no_tokens() -> SpecialTokens:
    """A checkpoint that says nothing about special tokens."""
    return SpecialTokens()
