"""SentencePiece's spelling ("llama", "gemma4"): U+2581 stands for a space, unknown characters fall back to bytes.

Words are not cut: merges run over the whole text between added tokens. A vocabulary with a score per token says which
joined token is best; one that lists merges says which pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pelton.core.errors import CheckpointError
from pelton.tokenize.gguf_kinds.arrays import (
    ADDED,
    FIELD,
    NORMAL,
    Tokens,
    bpe_section,
    listed_merges,
    numbers,
    option,
    read_tokens,
)
from pelton.tokenize.gguf_kinds.merges import merges_of
from pelton.tokenize.pretokenizer import Json
from pelton.tokenize.token_bytes import SPACE_MARK

# Phi-3 was trained on prompts whose markers take the white space behind them; GGUF has no field for it.
STRIPPING_ARCH = "phi3"
NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class SpaceMarked:
    """A file's space-marked vocabulary. `scored`: merges follow from scores, else the file lists them.

    `space_first`: every piece of text gets a space in front, and a decoded text loses one there. `single_spaces`: runs
    of spaces count as one, those at the ends as none. `strips_behind`: added tokens take the white space behind them.
    """

    scored: bool
    space_first: bool
    single_spaces: bool
    strips_behind: bool
    add_bos: bool = True

    def tokenizer_json(self, metadata: Mapping[str, object]) -> Json:
        """The content of a tokenizer.json; CheckpointError for arrays that do not belong together."""
        tokens = read_tokens(metadata)
        unknown = metadata.get(FIELD + "unknown_token_id")
        named = isinstance(unknown, int) and 0 <= unknown < len(tokens.texts)
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": tokens.added(rstrip=self._stripping(tokens)),
            "normalizer": {"type": "Sequence", "normalizers": self._normalizers()},
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": self._decoders()},
            "model": bpe_section(
                tokens.ids,
                _scored_merges(metadata, tokens) if self.scored else listed_merges(metadata),
                unk_token=tokens.texts[unknown] if isinstance(unknown, int) and named else None,
                fuse_unk=True,
                byte_fallback=True,
            ),
        }

    def _stripping(self, tokens: Tokens) -> frozenset[int]:
        if not self.strips_behind:
            return frozenset()
        texts = zip(tokens.texts, tokens.types, strict=True)
        return frozenset(i for i, (text, kind) in enumerate(texts) if kind in ADDED and text not in NOT_STRIPPING)

    def _normalizers(self) -> list[Json]:
        steps: list[Json] = []
        if self.single_spaces:
            steps.append({"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""})
            steps.append({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "})
        if self.space_first:
            steps.append({"type": "Prepend", "prepend": SPACE_MARK})
        return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}]

    def _decoders(self) -> list[Json]:
        steps: list[Json] = [
            {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        return [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}] if self.space_first else steps


def scored(metadata: Mapping[str, object]) -> SpaceMarked:
    """A vocabulary with scores; CheckpointError where the file wants characters replaced by a table of its own."""
    if FIELD + "precompiled_charsmap" in metadata:
        raise CheckpointError(
            f"{FIELD}precompiled_charsmap: tables of replaced characters are not supported for this vocabulary.",
            "The same model as a folder with a tokenizer.json works.",
        )
    return SpaceMarked(
        scored=True,
        space_first=option(metadata, "add_space_prefix", default=True),
        single_spaces=option(metadata, "remove_extra_whitespaces", default=False),
        strips_behind=metadata.get("general.architecture") == STRIPPING_ARCH,
    )


def listed(metadata: Mapping[str, object]) -> SpaceMarked:
    """A vocabulary with merges."""
    space_first = option(metadata, "add_space_prefix", default=False)
    return SpaceMarked(scored=False, space_first=space_first, single_spaces=False, strips_behind=False)


def _scored_merges(metadata: Mapping[str, object], tokens: Tokens) -> list[list[str]]:
    """From scores, highest first. Only ordinary tokens are made by merging: no text spells out a control token."""
    scores = numbers(metadata, "scores", len(tokens.texts))
    ordinary = {text: token_id for text, token_id in tokens.ids.items() if tokens.types[token_id] == NORMAL}
    best_first = sorted(ordinary, key=lambda text: -scores[ordinary[text]])
    return merges_of(best_first, ordinary.keys())
