"""Byte-level BPE ("gpt2"): tokens spell bytes, a named pre-tokenizer cuts the text, the file lists the merges."""

from collections.abc import Mapping
from dataclasses import dataclass

from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError, UnknownNameError
from pelton.tokenize import PRETOKENIZERS
from pelton.tokenize.gguf_kinds.arrays import ADDED, FIELD, Tokens, bpe_section, listed_merges, read_tokens
from pelton.tokenize.gguf_kinds.merges import merges_of
from pelton.tokenize.pretokenizer import Json, Pretokenizer


@dataclass(frozen=True, slots=True)
class ByteLevel:
    """A file's byte-level vocabulary."""

    pretokenizer: Pretokenizer

    @property
    def add_bos(self) -> bool:
        return self.pretokenizer.add_bos

    def tokenizer_json(self, metadata: Mapping[str, object]) -> Json:
        """The content of a tokenizer.json; CheckpointError for arrays that do not belong together."""
        tokens = read_tokens(metadata)
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": tokens.added(),
            "normalizer": self.pretokenizer.normalizer_section(),
            "pre_tokenizer": self.pretokenizer.pre_tokenizer(),
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "model": bpe_section(
                tokens.ids, self._merges(metadata, tokens), ignore_merges=self.pretokenizer.ignore_merges
            ),
        }

    def _merges(self, metadata: Mapping[str, object], tokens: Tokens) -> list[list[str]]:
        if not self.pretokenizer.ranked or metadata.get(FIELD + "merges"):
            return listed_merges(metadata)
        ranked = [text for text, kind in zip(tokens.texts, tokens.types, strict=True) if kind not in ADDED]
        return merges_of(ranked, frozenset(ranked))


def byte_level(metadata: Mapping[str, object]) -> ByteLevel:
    """The kind with the pre-tokenizer that the file names; CheckpointError where that name is unknown."""
    name = metadata.get(FIELD + "pre")
    try:
        return ByteLevel(PRETOKENIZERS.get(str(name)))
    except UnknownNameError as error:
        known = ", ".join(PRETOKENIZERS.names())
        raise CheckpointError(f"{FIELD}pre is {quoted(name)}, an unknown pre-tokenizer.", f"Known: {known}.") from error
