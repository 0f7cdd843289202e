"""OutputText: text, stop string and kept tokens do not depend on how many tokens a step accepted."""

from hypothesis import given
from hypothesis import strategies as st
from tests.tokenize.vocabularies import tiny_tokenizer

from pelton.detokenize.output import OutputText, TextPiece

TINY = tiny_tokenizer()
HE, HEL, THINK, END = 258, 259, 260, 1
A, B, X = (TINY.encode(char)[0] for char in "abx")
IDS = st.sampled_from([HE, HEL, THINK, END, A, B, X, *TINY.encode("\u00e9")])
STOPS = st.lists(st.sampled_from(["heb", "a", "lx", "\u00e9", "ab<th", "elh", "\ufffd", "<|end|>"]), max_size=3)


def test_tokens_after_the_stop_are_not_kept() -> None:
    output = OutputText(TINY, stops=["elx"])
    assert output.push([A, HE]) == TextPiece("ah", None, 2)
    assert output.push([A, HEL, X, B, B]) == TextPiece("eah", "elx", 3)
    assert output.stop == "elx"
    assert output.push([A]) == TextPiece("", "elx", 0)
    assert output.finish() == TextPiece("", "elx", 0)


def test_a_stop_inside_a_token_cuts_its_text() -> None:
    assert OutputText(TINY, stops=["e"]).push([A, HEL, B]) == TextPiece("ah", "e", 2)
    assert OutputText(TINY, stops=["e"], include_stop=True).push([A, HEL, B]) == TextPiece("ahe", "e", 2)


def test_without_stops_all_is_kept_and_half_a_character_held() -> None:
    output = OutputText(TINY)
    first, second = TINY.encode("\u00e9")
    assert output.push([HE, END, first]) == TextPiece("he", None, 3)
    assert output.push([second, first]) == TextPiece("\u00e9", None, 2)
    assert output.finish() == TextPiece("\ufffd", None, 0)


def test_special_tokens_can_be_shown() -> None:
    assert OutputText(TINY, skip_special=False).push([HE, END]).delta == "he<|end|>"
    assert OutputText(TINY, skip_special=False, stops=["<|end"]).push([HE, END, A]) == TextPiece("he", "<|end", 2)


def test_a_stop_string_is_held_until_the_end_and_then_given_out() -> None:
    output = OutputText(TINY, stops=["abx"])
    assert output.push([HE, A, B]) == TextPiece("he", None, 3)
    assert output.finish() == TextPiece("ab", None, 0)


def test_the_end_itself_can_complete_a_stop_string() -> None:
    output = OutputText(TINY, stops=["a\ufffd"])
    assert output.push([HE, A, TINY.encode("\u00e9")[0]]) == TextPiece("he", None, 3)
    assert output.finish() == TextPiece("", "a\ufffd", 0)
    assert output.stop == "a\ufffd"


def test_the_first_tokens_complete_no_stop_string() -> None:
    for groups in ([[A, B], [A, B, A, B]], [[A], [B], [A], [B], [A], [B]], [[A, B, A, B, A, B]]):
        output = OutputText(TINY, stops=["ab"], min_tokens=4)
        pieces = [output.push(group) for group in groups]
        assert "".join(piece.delta for piece in pieces) == "abab" and pieces[-1].stop == "ab"
        assert sum(piece.kept for piece in pieces) == 6
    output = OutputText(TINY, stops=["bab"], min_tokens=3)
    assert output.push([A, B, A, B]) == TextPiece("a", "bab", 4), "one may begin in them"
    output = OutputText(TINY, stops=["a\ufffd"], min_tokens=3)
    assert output.push([HE, A, TINY.encode("\u00e9")[0]]) == TextPiece("he", None, 3)
    assert output.finish() == TextPiece("a\ufffd", None, 0)


@given(st.lists(IDS, max_size=25), st.lists(st.integers(1, 6), max_size=25), STOPS, st.booleans(), st.booleans())
def test_grouping_changes_nothing(
    ids: list[int], sizes: list[int], stops: list[str], include: bool, skip: bool
) -> None:
    def run(groups: list[list[int]]) -> tuple[str, str | None, int]:
        output = OutputText(TINY, stops=stops, include_stop=include, skip_special=skip)
        text, kept = "", 0
        for group in groups:
            piece = output.push(group)
            text += piece.delta
            kept += piece.kept
            if piece.stop is not None:
                break
        return text + output.finish().delta, output.stop, kept

    groups, start = [], 0
    for size in sizes:
        groups.append(ids[start : start + size])
        start += size
    text, stop, kept = run([*groups, ids[start:]])
    assert (text, stop, kept) == run([[token_id] for token_id in ids]) == run([ids])
    whole = TINY.decode(ids, skip_special=skip)
    ends = [(whole.find(s) + len(s), order) for order, s in enumerate(stops) if s in whole]
    if not ends:
        assert (text, stop, kept) == (whole, None, len(ids))
        return
    end, order = min(ends)
    assert (text, stop) == (whole[: end if include else end - len(stops[order])], stops[order])
    # The last kept token is the one that completes the stop string, or the end of the answer does.
    assert stops[order] in TINY.decode(ids[:kept], skip_special=skip)
    assert OutputText(TINY, stops=stops, skip_special=skip).push(ids[: kept - 1]).stop is None
