"""Tokenizer: text <-> token ids, around one `tokenizers` object. It renders no chat template and streams nothing.

Invariant: decode(ids) is the UTF-8 text of the joined token_bytes of ids, malformed bytes as U+FFFD.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import tokenizers

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.errors import CheckpointError, RequestError
from pelton.core.words.unicode import expect_utf8
from pelton.tokenize.gguf_vocab import cached_tokenizer_json, source_key, vocabulary_of
from pelton.tokenize.text_bound import longest_token_bytes
from pelton.tokenize.token_bytes import section, spelling_of

_LARGEST_ID = 2**32 - 1  # of the library
_LONG_TEXT = 1 << 13  # characters, which take about a millisecond


class Tokenizer:
    """Text to ids and back for one vocabulary. Safe to use from several threads.

    `bos_id`: the token that starts a text, or None. `add_bos`: whether encode_prompt puts it there. `vocab_size`: the
    number of tokens, or more where ids of added tokens leave gaps; the model may have more rows of logits.
    `strips_leading_space`: decode drops one space at the start of a whole text (SentencePiece's rule).
    """

    def __init__(self, inner: tokenizers.Tokenizer, *, bos_id: int | None = None, add_bos: bool | None = None) -> None:
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = False
        self._inner = inner
        spelling = spelling_of(section(inner.decoder))
        self._to_bytes = spelling.to_bytes
        self.strips_leading_space = spelling.strips_leading_space
        added = inner.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = max(inner.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in added), 0)
        self._bytes: dict[int, bytes | None] = {}
        self.bos_id = bos_id
        self.add_bos = bos_id is not None and (self._starts_with(bos_id) if add_bos is None else add_bos)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The same, but special tokens are text to it: one object could not be both for two threads at once."""
        return _without_special(self._inner)

    @cached_property
    def longest_token_bytes(self) -> int | None:
        """The most UTF-8 bytes of a text that one token takes, so that n tokens hold at most n times as many.

        None where no bound is known. Takes a walk over the vocabulary the first time.
        """
        return longest_token_bytes(self._inner, self._to_bytes)

    def encode(self, text: str, *, special: bool = False, param: str = "prompt") -> list[int]:
        """Token ids of `text`, nothing added. Only with `special` do spelled-out special tokens become their ids.

        Raises RequestError (for `param`) if the text holds a lone surrogate, which no UTF-8 can carry.
        """
        expect_utf8(param, text)
        inner = self._inner if special else self._plain
        if len(text) < _LONG_TEXT:
            ids: list[int] = inner.encode(text, add_special_tokens=False).ids
        else:  # a batch is encoded without the interpreter's lock, so that other threads go on meanwhile
            ids = inner.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def encode_prompt(self, text: str, *, special: bool = False, param: str = "prompt") -> list[int]:
        """encode(), with BOS before it if the model wants one and the ids do not start with it already."""
        ids = self.encode(text, special=special, param=param)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`, without special tokens if `skip_special`; RequestError for an id outside the vocabulary."""
        skipped = self.special_ids if skip_special else frozenset()
        text = b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in skipped])
        if self.strips_leading_space and text[:1] == b" ":
            text = text[1:]
        return text.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, special or not; RequestError for an id outside the vocabulary."""
        value = self.known_bytes(token_id)
        if value is None:
            raise RequestError(
                f"Token id {token_id} is not in the vocabulary.",
                f"It has {self.vocab_size} tokens, with ids from 0.",
                param="token_ids",
            )
        return value

    def known_bytes(self, token_id: int) -> bytes | None:
        """token_bytes, or None for an id outside the vocabulary: a model may have more rows of logits than tokens."""
        if token_id not in self._bytes:
            written = self._inner.id_to_token(token_id) if 0 <= token_id <= _LARGEST_ID else None
            if written is None:
                return None
            self._bytes[token_id] = self._to_bytes(written)
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, special tokens shown; what is not whole UTF-8 appears as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def id_of(self, text: str) -> int | None:
        """Id of the token that is written exactly so in the vocabulary (such as "<|im_end|>"), or None."""
        token_id: int | None = self._inner.token_to_id(text)
        return token_id

    def _starts_with(self, bos_id: int) -> bool:
        """Whether the tokenizer's own post-processor puts `bos_id` before a text."""
        return bool(self._inner.encode("", add_special_tokens=True).ids[:1] == [bos_id])


class TokenizerSource(Protocol):
    """What a tokenizer is built from; a Checkpoint is one."""

    @property
    def path(self) -> Path: ...

    @property
    def tokenizer_json(self) -> Path | None: ...

    @property
    def gguf_metadata(self) -> Mapping[str, object] | None: ...

    @property
    def special_tokens(self) -> SpecialTokens: ...


def build_tokenizer(checkpoint: TokenizerSource) -> Tokenizer:
    """The checkpoint's tokenizer: its tokenizer.json, or one made from GGUF metadata and cached.

    Raises CheckpointError if there is none, or if it is damaged or of a kind that is not supported.
    """
    if checkpoint.tokenizer_json is not None:
        own = checkpoint.path if checkpoint.path.is_file() else None  # what was packed lies elsewhere for now
        return tokenizer_from_json(checkpoint.tokenizer_json, checkpoint.special_tokens, own)
    if checkpoint.gguf_metadata is not None:
        source = source_key(checkpoint.path)
        return tokenizer_from_gguf(checkpoint.gguf_metadata, source, checkpoint.special_tokens)
    raise CheckpointError(f"{checkpoint.path}: has no tokenizer.", "Put the model's tokenizer.json into its folder.")


def tokenizer_from_json(path: Path, tokens: SpecialTokens, shown: Path | None = None) -> Tokenizer:
    """From a tokenizer.json; where `tokens` does not say whether BOS is added, the file's post-processor does.

    `shown`: the file's name in errors, where the user gave another one.
    """
    inner = load_tokenizer_json(path, shown)
    named = inner.token_to_id(tokens.bos_token) if tokens.bos_token is not None else None
    return Tokenizer(inner, bos_id=tokens.bos_id if named is None else named, add_bos=tokens.add_bos)


def tokenizer_from_gguf(metadata: Mapping[str, object], source: str, tokens: SpecialTokens) -> Tokenizer:
    """From the metadata of a GGUF; `source` identifies the file for the cache (see gguf_vocab.source_key)."""
    try:
        inner = _from_gguf_text(cached_tokenizer_json(metadata, source))
    except CheckpointError:
        # A damaged file in the cache must not outlive this start; a damaged vocabulary fails again, now for good.
        inner = _from_gguf_text(cached_tokenizer_json(metadata, source, rebuild=True))
    add_bos = vocabulary_of(metadata).add_bos if tokens.add_bos is None else tokens.add_bos
    return Tokenizer(inner, bos_id=tokens.bos_id, add_bos=add_bos)


def load_tokenizer_json(path: Path, shown: Path | None = None) -> tokenizers.Tokenizer:
    """The `tokenizers` object of a tokenizer.json; CheckpointError with the library's message if it is not usable."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(
            f"{shown or path}: not a usable tokenizer.json ({error}).", "Fetch the file again."
        ) from error


def _without_special(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with the same tokens, to which special ones are text, around the same model.

    A whole copy would take a second and 100 MB for 262,144 tokens.
    """
    plain = tokenizers.Tokenizer(inner.model)
    if inner.normalizer is not None:
        plain.normalizer = inner.normalizer
    if inner.pre_tokenizer is not None:
        plain.pre_tokenizer = inner.pre_tokenizer
    added = inner.get_added_tokens_decoder()
    plain.add_tokens([added[token_id] for token_id in sorted(added)])  # so each gets the id that it has
    plain.encode_special_tokens = True
    return plain


def _from_gguf_text(text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(
            f"The vocabulary in the GGUF's metadata makes no usable tokenizer.json ({error}).", "Fetch the file again."
        ) from error
