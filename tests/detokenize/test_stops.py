"""StopStrings: against a search in the whole text, for any pieces; it holds back no more than it must."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.detokenize.stops import StopStrings

FEW = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)
PIECES = st.lists(st.text(alphabet="ab", max_size=4), max_size=20)


def whole_text_search(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The oracle: of all occurrences the one that ends first, ties by list order."""
    ends = [(text.find(stop) + len(stop), order) for order, stop in enumerate(stops) if stop in text]
    if not ends:
        return text, None
    end, order = min(ends)
    return text[: end if include else end - len(stops[order])], stops[order]


def may_begin_a_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of a stop string."""
    lengths = (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


@given(PIECES, STOPS, st.booleans())
def test_any_pieces_give_what_the_whole_text_gives(pieces: list[str], stops: list[str], include: bool) -> None:
    search = StopStrings(stops, include=include)
    given_out, found, seen = [], None, ""
    for piece in pieces:
        text, stop = search.feed(piece)
        given_out.append(text)
        seen += piece
        assert (found is None) or (text, stop) == ("", found), "after a stop string nothing comes out"
        found = stop
        expected, expected_stop = whole_text_search(seen, stops, include)
        assert stop == expected_stop, "found as soon as it is complete"
        if stop is None:
            held = may_begin_a_stop(seen, stops)
            assert "".join(given_out) == seen[: len(seen) - held], "held back: no more and no less than needed"
        else:
            assert "".join(given_out) == expected
    rest = search.finish()
    assert found is None or rest == ""
    assert ("".join(given_out) + rest, found) == whole_text_search(seen, stops, include)


def test_a_stop_string_over_many_pieces() -> None:
    search = StopStrings(["</end>"])
    assert [search.feed(char)[0] for char in "x<</end"] == ["x", "", "<", "", "", "", ""]
    assert search.feed(">tail") == ("", "</end>")
    assert search.feed("more") == ("", "</end>")
    assert search.finish() == ""


def test_what_only_looked_like_a_stop_string_comes_out() -> None:
    search = StopStrings(["###"])
    assert [search.feed(text) for text in ("a#", "#", "b")] == [("a", None), ("", None), ("##b", None)]
    assert search.feed("##") == ("", None)
    assert search.finish() == "##"
    assert search.finish() == ""


def test_the_one_that_ends_first_wins_then_the_order_of_the_list() -> None:
    assert StopStrings(["abcd", "bc"]).feed("xabcd") == ("xa", "bc")
    assert StopStrings(["abc", "bc"]).feed("xabcd") == ("x", "abc")
    assert StopStrings(["bc", "abc"]).feed("xabcd") == ("xa", "bc")
    assert StopStrings(["bc", "abc"], include=True).feed("xabcd") == ("xabc", "bc")


def test_without_stop_strings_nothing_is_held() -> None:
    search = StopStrings([])
    assert search.feed("abc") == ("abc", None)
    assert search.finish() == ""


def test_an_empty_stop_string_is_a_fault() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_each_character_is_looked_at_once() -> None:
    """A stop string of 20,000 equal characters, fed one by one, would take minutes with a search per piece."""
    search = StopStrings(["a" * 20_000 + "b"])
    for _ in range(40_000):
        search.feed("a")
    assert search.feed("b")[1] is not None


def test_many_stop_strings_cost_no_more_than_one() -> None:
    """Of what is looked at per character there is one place, however many begin alike: no times are compared."""
    stops = ["ab" * 30 + str(number) for number in range(64)]
    search = StopStrings(["b0", *stops])
    looked = 0

    class Counting(list[dict[str, int]]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    automaton = search._automaton
    automaton._next = Counting(automaton._next)
    try:
        for _ in range(100):
            assert search.feed("abababab")[1] is None
    finally:
        automaton._next = list(automaton._next)
    assert looked <= 4 * 800
    assert search.feed("0")[1] == "b0"


def test_the_answers_of_a_call_share_the_search() -> None:
    assert StopStrings(["x", "y"])._automaton is StopStrings(["x", "y"])._automaton


@given(PIECES, STOPS, st.integers(0, 12))
def test_what_ends_too_early_is_no_match_but_may_begin_one(pieces: list[str], stops: list[str], early: int) -> None:
    """The oracle: of all occurrences that end in a late enough piece the one that ends first, ties by list order."""
    search = StopStrings(stops)
    seen, border, given_out, found = "", 0, "", None
    for number, piece in enumerate(pieces):
        text, found = search.feed(piece, ends=number >= early)
        given_out += text
        seen += piece
        border = len(seen) if number < early else border
        ends = [
            (start + len(stop), order)
            for order, stop in enumerate(stops)
            for start in range(len(seen))
            if seen.startswith(stop, start) and start + len(stop) > border
        ]
        if not ends:
            assert found is None and given_out == seen[: len(seen) - may_begin_a_stop(seen, stops)]
            continue
        end, order = min(ends)
        assert found == stops[order] and given_out == seen[: end - len(stops[order])]
        return
    assert given_out + search.finish() == seen
