"""Bounds on the text of one token, and what is said about vocabularies that do not fit the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenize.vocabularies import byte_level_metadata, packed_tokenizer_json, space_marked, tiny_tokenizer

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.errors import CheckpointError
from pelton.tokenize.gguf_vocab import vocabulary_of
from pelton.tokenize.tokenizer import Tokenizer
from pelton.tokenize.vocabulary import check_vocabulary

# One precomposed character each, spelled as long as can be: three Hangul letters, a sign for K, an omega with marks.
SHRINKING = ["\u1100\u1161\u11a8", "\u212a", "\u2126\u0314\u0300\u0345"]


def tiny(**changes: Any) -> Tokenizer:
    """The tiny byte-level tokenizer with changed sections; `added`: flags of a further special token."""
    metadata = byte_level_metadata()
    content: dict[str, Any] = vocabulary_of(metadata).tokenizer_json(metadata)
    if flags := changes.pop("added", None):
        plain = {"id": 261, "content": "<mask>", "special": True, "single_word": False, "normalized": False}
        content["added_tokens"].append({**plain, "lstrip": False, "rstrip": False} | flags)
    if drop := changes.pop("drop", None):
        del content["model"]["vocab"][drop]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content | changes)))


def test_the_longest_token_counts() -> None:
    assert tiny_tokenizer().longest_token_bytes == len("<|start|>")
    assert tiny(added={"content": "<long special token>"}).longest_token_bytes == 20
    assert tiny(added={"content": "\u00e9" * 20}).longest_token_bytes == 40, "added tokens are matched as they are"
    assert tiny(normalizer={"type": "NFC"}).longest_token_bytes == 3 * len("<|start|>")
    assert Tokenizer(space_marked()).longest_token_bytes == len("\u2581ab".encode())


PIECES = ["he", "hel", "<|start|>", "\u2581ab", " ", "\u2581", "\u00e9", "x", *SHRINKING]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_text_has_fewer_tokens_than_the_bound_says(text: str) -> None:
    for tokenizer in (tiny_tokenizer(), tiny(normalizer={"type": "NFC"}), Tokenizer(space_marked())):
        bound = tokenizer.longest_token_bytes
        assert bound is not None
        assert len(text.encode()) <= bound * len(tokenizer.encode(text, special=True))


@pytest.mark.parametrize("text", SHRINKING)
def test_normalising_shortens_no_more_than_assumed(text: str) -> None:
    shorter = tokenizers.normalizers.NFC().normalize_str(text)
    assert len(text.encode()) == pytest.approx(3 * len(shorter.encode()))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Split", "pattern": {"Regex": " "}, "behavior": "Removed", "invert": False}],
            }
        },
        {"added": {"lstrip": True}},
        {"added": {"rstrip": True}},
        {"drop": "\u0100"},
    ],
)
def test_no_bound_where_text_can_vanish(changes: dict[str, Any]) -> None:
    assert tiny(**changes).longest_token_bytes is None


@pytest.mark.parametrize(("vocabulary", "bound"), [("qwen3", 3 * 128), ("glm-4.5v", 512)])
def test_bounds_of_real_vocabularies(data: Path, vocabulary: str, bound: int) -> None:
    inner = tokenizers.Tokenizer.from_str(json.dumps(packed_tokenizer_json(data, vocabulary)))
    assert Tokenizer(inner).longest_token_bytes == bound


# ---------------------------------------------------------------------------------------------------
# vocabularies that do not fit


def test_a_vocabulary_that_fits_needs_no_words() -> None:
    for vocab in (261, 300):
        assert check_vocabulary(tiny_tokenizer(add_bos=True), SpecialTokens(eos_ids=(1, 260)), vocab) == ()


def test_more_tokens_than_rows_and_ends_outside_are_told() -> None:
    notes = check_vocabulary(tiny_tokenizer(), SpecialTokens(eos_ids=(1, 260, 10**400)), 260)
    assert len(notes) == 3
    assert "tokenizer has 261 tokens, the model 260" in notes[0]
    assert notes[1].startswith("Token 260 cannot end an answer")
    assert notes[2].startswith("Token 1000") and len(notes[2]) < 200


def test_a_bos_outside_is_refused_where_it_is_added() -> None:
    inner = space_marked(post_bos=True)
    for bos in (259, 10**400):
        with pytest.raises(CheckpointError, match=f"starts with token {str(bos)[:9]}.*the model has 259 tokens"):
            check_vocabulary(Tokenizer(inner, bos_id=bos, add_bos=True), SpecialTokens(), 259)
        check_vocabulary(Tokenizer(inner, bos_id=bos, add_bos=False), SpecialTokens(), 259)
