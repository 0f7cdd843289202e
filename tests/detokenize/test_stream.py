"""TokenStream: pieces joined are the decoded whole for any ids and any way to hand them in."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenize.vocabularies import json_lines, space_marked, tiny_tokenizer

from pelton.detokenize.stream import TokenStream
from pelton.tokenize.tokenizer import Tokenizer

TINY = tiny_tokenizer()
MARKED = Tokenizer(space_marked(), bos_id=1)
UNSTRIPPED = Tokenizer(space_marked(strip=False), bos_id=1)
BYTE = 2  # id of byte 0x21, the first of the alphabet, in TINY


def ids_of_bytes(raw: bytes) -> list[int]:
    """One token per byte."""
    order = {TINY.token_bytes(token_id): token_id for token_id in range(BYTE, BYTE + 256)}
    return [order[bytes([byte])] for byte in raw]


def chunked(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """`ids` in chunks of the given sizes, the last one to the end."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(ids[start : start + size])
        start += size
    return [*chunks, ids[start:]]


def pieces(tokenizer: Tokenizer, chunks: Sequence[Sequence[int]], skip: bool = True) -> list[str]:
    stream = TokenStream(tokenizer, skip_special=skip)
    return [*(stream.add(chunk) for chunk in chunks), stream.finish()]


def check_any_chunks(tokenizer: Tokenizer, ids: st.SearchStrategy[int]) -> Callable[[], None]:
    @given(st.lists(ids, max_size=60), st.lists(st.integers(0, 5), max_size=60), st.booleans())
    def check(ids: list[int], sizes: list[int], skip: bool) -> None:
        assert "".join(pieces(tokenizer, chunked(ids, sizes), skip)) == tokenizer.decode(ids, skip_special=skip)

    return check


# ---------------------------------------------------------------------------------------------------
# any ids, any chunks


@pytest.mark.parametrize("tokenizer", [TINY, MARKED, UNSTRIPPED], ids=["bytes", "marked", "unstripped"])
def test_pieces_joined_are_the_whole(tokenizer: Tokenizer) -> None:
    check_any_chunks(tokenizer, st.integers(0, tokenizer.vocab_size - 1))()


def test_pieces_joined_are_the_whole_for_the_default_model(smollm2_tokenizer: Tokenizer) -> None:
    tokenizer = smollm2_tokenizer
    broken = [i for i in range(tokenizer.vocab_size) if "\ufffd" in tokenizer.token_text(i)]
    assert len(broken) > 200, "tokens that are no whole characters are the interesting ones"
    anything = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(broken) | st.integers(0, 16)
    check_any_chunks(tokenizer, anything)()


@given(st.binary(max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_bytes_that_are_no_text(raw: bytes, sizes: list[int]) -> None:
    ids = ids_of_bytes(raw)
    assert "".join(pieces(TINY, chunked(ids, sizes))) == raw.decode("utf-8", "replace")


@given(st.text(max_size=20), st.lists(st.integers(0, 3), max_size=80))
def test_no_piece_has_half_a_character(text: str, sizes: list[int]) -> None:
    given_out = pieces(TINY, chunked(ids_of_bytes(text.encode()), sizes))
    assert "".join(given_out) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in given_out)
    assert given_out[-1] == ""


def test_malformed_bytes_of_the_test_suite(data: Path) -> None:
    rows = json_lines(data / "tokenizer" / "utf8_decoder_cases.jsonl")
    checked = 0
    for row in rows:
        raw = bytes.fromhex(row["hex"])
        expected = bytes.fromhex(row["replace_hex"] or row["hex"]).decode()
        assert "".join(pieces(TINY, [[i] for i in ids_of_bytes(raw)])) == expected, row["num"]
        checked += 1
    assert checked > 100


# ---------------------------------------------------------------------------------------------------
# when text comes out


def test_a_character_comes_out_with_its_last_byte() -> None:
    ids = ids_of_bytes("a\U0001f600b".encode())
    assert pieces(TINY, [[i] for i in ids]) == ["a", "", "", "", "\U0001f600", "b", ""]


def test_an_unfinished_character_is_flushed_at_the_end_only() -> None:
    stream = TokenStream(TINY)
    assert stream.add(ids_of_bytes(b"a\xf0\x9f")) == "a"
    assert stream.add([]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert stream.add(ids_of_bytes(b"b")) == "b"


def test_a_malformed_byte_comes_out_when_it_is_known_to_be_one() -> None:
    stream = TokenStream(TINY)
    assert [stream.add([i]) for i in ids_of_bytes(b"\x80\xc3a")] == ["\ufffd", "", "\ufffda"]


def test_special_tokens_and_ids_without_a_token() -> None:
    assert pieces(TINY, [[0, 258, 260, 1, 999, -1]]) == ["he<think>", ""]
    assert pieces(TINY, [[0, 258, 1, 999]], skip=False) == ["<|start|>he<|end|>", ""]


def test_a_skipped_special_token_does_not_break_a_character() -> None:
    first, second = ids_of_bytes("\u00e9".encode())
    assert pieces(TINY, [[first, 1], [second]]) == ["", "\u00e9", ""]


# ---------------------------------------------------------------------------------------------------
# space at the start


def test_a_space_at_the_start_depends_on_the_prompt() -> None:
    answer = MARKED.encode("ab")
    assert TokenStream(MARKED).add(answer) == "ab"
    assert TokenStream(MARKED, prompt_ids=[1]).add(answer) == "ab"
    assert TokenStream(MARKED, prompt_ids=[1, *MARKED.encode("a"), 2]).add(answer) == " ab"
    assert TokenStream(UNSTRIPPED).add(answer) == " ab"


def test_only_the_first_space_goes() -> None:
    stream = TokenStream(MARKED)
    mark = MARKED.id_of("\u2581")
    assert mark is not None
    assert [stream.add([i]) for i in (1, mark, mark, 1, *MARKED.encode("a"))] == ["", "", " ", "", " a"]
    assert TokenStream(MARKED).add([mark, mark]) == " "
