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
JOINS = "\u0301\u0903\u200d"  # Extend, SpacingMark, ZWJ
CLOSING = "\u201d\u2019\u00bb)\u300d\"'"
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
        # characters that hold on to what follows; written syllables; spaces that are not ASCII's
        ("token", ["a", "\u0600", "7", "x"], ["a", "\u06007x"]),
        ("token", ["\u0d4e", "\u0d15", " "], ["\u0d4e\u0d15 "]),
        ("token", ["\uac00", "\ud55c", "."], ["\uac00", "\ud55c", "."]),
        ("token", ["\u3000", "\u00a0", "x"], ["\u3000", "\u00a0", "x"]),
        # quotation marks between Hebrew letters, as acronyms have them, and elsewhere
        ("word", [*'\u05e6\u05d4"\u05dc a"b'], ['\u05e6\u05d4"\u05dc', " ", 'a"', "b"]),
        # what continues a character belongs to the sentence that it ended
        *(("sentence", [f"\u597d\u3002{mark}\u597d"], [f"\u597d\u3002{mark}", "\u597d"]) for mark in JOINS),
        *(("sentence", [f"A. {mark}B. C"], [f"A. {mark}B. ", "C"]) for mark in JOINS),
        *(("sentence", [f"A! {mark}B! C"], [f"A! {mark}B! ", "C"]) for mark in JOINS),
        *(("sentence", [f"a{end}b"], [f"a{end}", "b"]) for end in "\n\v\f\x85\u2028\u2029"),
        ("sentence", ["Well\u2026", " Then", "\u2026 now"], ["Well\u2026 ", "Then\u2026 now"]),
        ("sentence", ["Well\u2026? now", " \u2026! No"], ["Well\u2026? ", "now \u2026! ", "No"]),
        ("sentence", ["\u597d\uff01\u2026\u597d"], ["\u597d\uff01\u2026", "\u597d"]),
        *(("sentence", [f"\u597d\u3002{close}\u597d"], [f"\u597d\u3002{close}", "\u597d"]) for close in CLOSING),
        *(("sentence", [f"No.{close} Then"], [f"No.{close} ", "Then"]) for close in CLOSING),
        *(("sentence", [f"No!{close} then"], [f"No!{close} ", "then"]) for close in CLOSING),
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


STACK = "e" + "\u0301" * 2


@pytest.mark.parametrize(
    ("granularity", "text", "held", "given_out"),
    [
        ("token", "\U0001f468\u200d" * 40, 64, 64),
        ("word", "x" * 200, 128, 127),  # the last character may go on
        ("word", STACK * 50, 128, 126),
        ("word", "\U0001f468\u200d" * 70, 128, 128),
        ("sentence", "one or " * 150, 1024, 1022),  # a whole word is left over
        ("sentence", "x" * 1100, 1024, 1023),
        ("sentence", STACK * 400, 1024, 1023),
        ("sentence", "\U0001f468\u200d" * 600, 1024, 1024),
        ("sentence", "ab " + "\U0001f468\u200d" * 600, 1024, 3),
    ],
)
def test_when_too_much_is_held_the_next_finer_border_is_taken(
    granularity: str, text: str, held: int, given_out: int
) -> None:
    """So much is held, not less; then as much comes out as the finest border that is needed allows."""
    gate = Gate(granularity)
    assert [gate.feed(char) for char in text[: held - 1]] == [""] * (held - 1)
    assert gate.feed(text[held - 1]) == text[:given_out]


def test_a_step_with_much_text_is_bounded_too() -> None:
    for granularity in GRANULARITIES:
        gate = Gate(granularity)
        assert len(gate.feed("e" + "\u0301" * 3000)) > 3000 - MOST_HELD[granularity]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_long_text_at_once_takes_time_in_proportion(granularity: str) -> None:
    """Flags, of which each ends where the number of halves before it says."""
    text = FLAGS[0] * 100_001
    gate, began = Gate(granularity), perf_counter()
    given_out = gate.feed(text)
    assert perf_counter() - began < 10, "all at once it would be a minute or more"
    assert text == given_out + gate.finish()
    assert len(given_out) == 100_000 if granularity != "sentence" else len(given_out) > 100_000 - MOST_HELD[granularity]


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
