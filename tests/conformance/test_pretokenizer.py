"""Every registered pre-tokenizer cuts without losing or changing a character."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from registry_entries import entries

from pelton.tokenize import PRETOKENIZERS
from pelton.tokenize.token_bytes import byte_alphabet

ALPHABET = byte_alphabet()
JOINS_WORDS = {"exaone-moe"}  # words of letters alone stay together
HARD = "I'll 12345 o'Clock\r\n\n  x\t\u3000\u4e2d\u6587\U0001f468\u200d\U0001f469e\u0301 !?\n"


def section(name: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    whole = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": PRETOKENIZERS.get(name).normalizer_section(),
        "pre_tokenizer": PRETOKENIZERS.get(name).pre_tokenizer(),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    return tokenizers.Tokenizer.from_str(json.dumps(whole)).pre_tokenizer


@pytest.mark.parametrize("name", entries("pretokenizer"))
def test_pieces_joined_are_the_text(name: str) -> None:
    pre_tokenizer = section(name)

    def joined(text: str) -> str:
        pieces = "".join(piece for piece, _ in pre_tokenizer.pre_tokenize_str(text))
        return bytes(ALPHABET[char] for char in pieces).decode()

    @settings(max_examples=30)
    @given(st.text())
    def check(text: str) -> None:
        assert joined(text) == text

    check()
    assert joined(HARD) == HARD
    assert len(pre_tokenizer.pre_tokenize_str(HARD)) > 5


@pytest.mark.parametrize("name", entries("pretokenizer"))
def test_words_keep_their_space_and_lines_are_cut(name: str) -> None:
    pieces = [piece for piece, _ in section(name).pre_tokenize_str("two words\nhere")]
    assert pieces[-2:] == ["\u010a", "here"]
    assert pieces[:-2] == (["two\u0120words"] if name in JOINS_WORDS else ["two", "\u0120words"])
