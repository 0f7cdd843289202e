"""Gate and OutputText: pieces end at borders of tokens, words and sentences, for any way in which a text arrives."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from pelton.core.params import GRANULARITIES
from pelton.detokenize.granularity import MOST_HELD, Gate
from pelton.detokenize.output import OutputText
from pelton.tokenize.tokenizer import Tokenizer

FAMILY, FLAGS = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"
WAVE, ONE = "\U0001f44b\U0001f3fd", "1\ufe0f\u20e3"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
COMPOSED = ["e\u0301", "\u0915\u094d\u0937\u093f", "\ud55c", "\u1112\u1161", "\u0301", "\u200d"]
WORDS = ["\u4e16", "\u3002", "\u300d", "a", "it's", "3.14", "No", " ", ". ", "?", "! ", "\n", "\r\n"]
PARTS = [FAMILY, FLAGS, WAVE, ONE, ENGLAND, "\u2764\ufe0f", "\U0001f642", "#", *COMPOSED, *WORDS]
CHANGED = "\u2701\u200d\u2701"  # one cluster in the data's version of Unicode, in which these scissors are an emoji
ENDLESS = ["a" + "\u0301" * 5000, "\U0001f468\u200d" * 3000, "x" * 5000, "... " * 2000, "." * 5000, "\U0001f1e9" * 3001]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(max_size=20)


class Bytes:
    """A vocabulary of the 256 bytes."""

    strips_leading_space = False
    special_ids: frozenset[int] = frozenset()

    def known_bytes(self, token_id: int) -> bytes | None:
        return bytes([token_id])


def through_gate(granularity: str, arriving: Iterable[str]) -> list[str]:
    gate = Gate(granularity)
    pieces = [gate.feed(delta) for delta in arriving]
    return [piece for piece in [*pieces, gate.finish()] if piece]


def through_tokens(granularity: str, vocabulary: Bytes | Tokenizer, ids: Sequence[int]) -> list[str]:
    output = OutputText(vocabulary, skip_special=False, granularity=granularity)
    pieces = [output.push([token]).delta for token in ids]
    return [piece for piece in [*pieces, output.finish().delta] if piece]


def borders(pieces: Iterable[str]) -> set[int]:
    """Where the pieces end in the text that they make, its own end left out."""
    return set(list(accumulate(len(piece) for piece in pieces))[:-1])


def split(text: str, sizes: Iterable[int]) -> list[str]:
    parts, place = [], 0
    for size in sizes:
        parts.append(text[place : place + size])
        place += size
    return [*parts, text[place:]]


def mark_behind_a_letter(text: str, place: int) -> bool:
    """What `token` alone may split: a mark, and before it what is seldom written with marks."""
    before, after = text[place - 1], text[place]
    kept = before in "0123456789#*\r" or regex.match(r"[\p{ExtPict}\p{RI}\p{M}\p{EMod}]", before)
    return unicodedata.category(after) in ("Mn", "Mc", "Me", "Cf", "Sk", "Lo") and not kept


@pytest.fixture(scope="module")
def emoji(data: Path) -> list[str]:
    lines = (data / "tokenizer" / "emoji-test.txt").read_text(encoding="utf-8").splitlines()
    codes = [line.split(";")[0].split() for line in lines if line.strip() and not line.startswith("#")]
    return ["".join(chr(int(code, 16)) for code in sequence) for sequence in codes]


@pytest.fixture(scope="module")
def clusters(data: Path) -> list[list[str]]:
    """Strings of the Unicode consortium's test as their clusters."""
    lines = (data / "tokenizer" / "torture_strings.jsonl").read_text(encoding="utf-8").strip().split("\n")
    return [row["graphemes"] for row in map(json.loads, lines) if row.get("graphemes")]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_emoji_sequence_is_split(granularity: str, emoji: list[str], smollm2_tokenizer: Tokenizer) -> None:
    assert len(emoji) > 4500
    for number, sequence in enumerate(emoji):
        parts = [*"Hi ", sequence, emoji[number - 1], sequence, *" ok"]
        text, allowed = "".join(parts), set(accumulate(map(len, parts)))
        ids = smollm2_tokenizer.encode(text)
        for pieces in (
            through_tokens(granularity, Bytes(), text.encode()),
            through_tokens(granularity, smollm2_tokenizer, ids),
        ):
            assert "".join(pieces) == text
            assert borders(pieces) <= allowed, (ascii(sequence), pieces)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_cluster_is_split(granularity: str, clusters: list[list[str]], smollm2_tokenizer: Tokenizer) -> None:
    assert len(clusters) == 403
    for parts in clusters:
        text, allowed = "".join(parts), set(accumulate(map(len, parts)))
        for pieces in (
            through_tokens(granularity, Bytes(), text.encode()),
            through_tokens(granularity, smollm2_tokenizer, smollm2_tokenizer.encode(text)),
        ):
            assert "".join(pieces) == text
            wrong = borders(pieces) - allowed
            if granularity == "token":
                wrong = {place for place in wrong if not mark_behind_a_letter(text, place)}
            assert not wrong or text == CHANGED, (ascii(text), pieces)


@given(TEXTS, st.lists(st.integers(0, 4), max_size=30))
def test_any_way_of_arriving_gives_the_text_in_clusters(text: str, sizes: list[int]) -> None:
    ends = {found.end() for found in regex.finditer(r"\X", text)}
    words = {found.start() for found in regex.finditer(r"(?w)\b", text)} & ends
    for granularity in GRANULARITIES:
        pieces = through_gate(granularity, split(text, sizes))
        assert "".join(pieces) == text
        if granularity == "token":
            assert all(place in ends or mark_behind_a_letter(text, place) for place in borders(pieces))
        else:
            assert borders(pieces) <= (words if granularity == "word" else ends)


@given(TEXTS)
def test_words_wait_for_no_more_than_their_border(text: str) -> None:
    """Every border that the whole text has is used when characters come one by one, a link's neighbourhood aside."""
    pieces = borders(through_gate("word", text))
    words = {found.start() for found in regex.finditer(r"(?w)\b", text)} & {
        found.end() for found in regex.finditer(r"\X", text)
    }
    for place in words - pieces - {0, len(text)}:
        near = text[place - 1 : place + 2]
        links = r"\p{WB=MidLetter}\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}\p{WB=Double_Quote}"
        assert regex.search(rf"[{links}\p{{M}}\p{{Cf}}\p{{Lo}}\p{{Sk}}]", near)


@pytest.mark.parametrize(
    ("granularity", "arriving", "expected"),
    [
        ("token", ["The", " cap", "ital", " is", " 4", "2", "."], ["The", " cap", "ital", " is", " ", "4", "2."]),
        ("token", ["**", "Bold", "**"], ["*", "*Bold", "*", "*"]),
        (
            "token",
            ["\u041c\u0438", "\u0440", "\u4e16", "\u754c", "\u3001"],
            ["\u041c\u0438", "\u0440", "\u4e16", "\u754c", "\u3001"],
        ),
        ("token", [FAMILY[:2], FAMILY[2:], " x"], [FAMILY + " x"]),
        ("token", [FLAGS[0], FLAGS[1], FLAGS[0], FLAGS[1]], [FLAGS, FLAGS]),
        ("word", ["Hel", "lo", ",", " wor", "ld", "!"], ["Hello, ", "world", "!"]),
        ("word", ["can", "'", "t", " stop", " 3", ".", "14", "."], ["can't ", "stop ", "3.14."]),
        ("word", ["\u4e16\u754c", "\u3002", "\u597d"], ["\u4e16", "\u754c", "\u3002", "\u597d"]),
        ("sentence", ["One", ".", " Two", "?", " three", "!"], ["One. ", "Two? ", "three!"]),
        ("sentence", ["See e.g. this, at 3.14", ". Next"], ["See e.g. this, at 3.14. ", "Next"]),
        ("sentence", ['He said "No."', " Then", " left\n", "x"], ['He said "No." ', "Then left\n", "x"]),
        ("sentence", ["a\r", "\nb\r", "c"], ["a\r\n", "b\r", "c"]),
        (
            "sentence",
            ["\u662f\u3002\u300d", "\u5426", "\uff01", "\uff1f\u597d"],
            ["\u662f\u3002\u300d", "\u5426\uff01\uff1f", "\u597d"],
        ),
        ("sentence", ["\uff13\uff0e\uff11", "\uff0e\u6b21"], ["\uff13\uff0e\uff11\uff0e", "\u6b21"]),
        ("sentence", ["Good. ", WAVE, " Bye"], ["Good. ", WAVE + " Bye"]),
    ],
)
def test_where_pieces_end(granularity: str, arriving: list[str], expected: list[str]) -> None:
    assert through_gate(granularity, arriving) == expected


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("text", ENDLESS)
def test_endless_characters_words_and_sentences_flow(granularity: str, text: str) -> None:
    gate, given_out = Gate(granularity), 0
    began = perf_counter()
    for place, char in enumerate(text, 1):
        given_out += len(gate.feed(char))
        assert place - given_out < MOST_HELD[granularity]
    assert perf_counter() - began < 20, "each character costs what is held at most"
    assert given_out + len(gate.finish()) == len(text)


def test_a_step_with_much_text_is_bounded_too() -> None:
    for granularity in GRANULARITIES:
        gate = Gate(granularity)
        assert len(gate.feed("e" + "\u0301" * 3000)) > 3000 - MOST_HELD[granularity]


@given(TEXTS, st.lists(st.text(alphabet="a.\u200d\U0001f469 ", min_size=1, max_size=3), max_size=2), st.booleans())
def test_stop_strings_act_on_the_text_before_it_is_held(text: str, stops: list[str], include: bool) -> None:
    ids = list(text.encode())
    found = []
    for granularity in GRANULARITIES:
        output = OutputText(Bytes(), stops=stops, include_stop=include, granularity=granularity)
        pieces, kept = [], 0
        for token in ids:
            piece = output.push([token])
            pieces.append(piece.delta)
            kept += piece.kept
            if piece.stop is not None:
                break
        found.append(("".join(pieces) + output.finish().delta, output.stop, kept))
    assert found[0] == found[1] == found[2]


def test_a_stop_inside_an_emoji_sequence() -> None:
    for granularity in GRANULARITIES:
        output = OutputText(Bytes(), stops=["\u200d\U0001f469"], granularity=granularity)
        assert "".join(output.push([byte]).delta for byte in ("Hi " + FAMILY).encode()) == "Hi " + FAMILY[0]
        assert output.stop == "\u200d\U0001f469" and output.finish().delta == ""
