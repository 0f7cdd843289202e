"""Vocabularies of GGUF files in SentencePiece's spelling or with ranks for merges: what of the file decides what."""

import json
from itertools import pairwise
from time import perf_counter

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenize.vocabularies import (
    CONTROL,
    FIELD,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    built,
    byte_level_metadata,
    no_tokens,
    space_marked_metadata,
)

from pelton.core.errors import CheckpointError
from pelton.tokenize.gguf_kinds.arrays import listed_merges
from pelton.tokenize.gguf_kinds.merges import merges_of
from pelton.tokenize.gguf_vocab import vocabulary_of
from pelton.tokenize.token_bytes import byte_alphabet
from pelton.tokenize.tokenizer import Tokenizer, tokenizer_from_gguf

PIECES = ["\u2581ab", "ab", "\u2581a", "\u2581", "a", "b", "\u00e9"]
FIRST = 259  # id of the first piece


def ids_of(*pieces: str) -> list[int]:
    return [FIRST + PIECES.index(piece) for piece in pieces]


def listed_metadata(**fields: object) -> dict[str, object]:
    """The same vocabulary with merges instead of scores."""
    metadata = space_marked_metadata(PIECES, merges=("a b", "\u2581 ab", "\u2581 a"), **fields)
    del metadata[FIELD + "scores"]
    return metadata | {FIELD + "model": "gemma4"}


# ---------------------------------------------------------------------------------------------------
# merges by score


def joined_by_score(text: str, scores: dict[str, int]) -> list[str]:
    """The rule in its plainest form: of all neighbours that make a token the best, of equals the leftmost."""
    parts = list(text)
    while True:
        made = [(-scores[a + b], place) for place, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not made:
            return parts
        _, place = min(made)
        parts[place : place + 2] = ["".join(parts[place : place + 2])]


@st.composite
def scored_vocabularies(draw: st.DrawFn) -> dict[str, int]:
    """Tokens grown out of one another in any order of score; the letters come last, as trainers put them."""
    tokens = ["a", "b", "c"]
    for left, right in draw(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=12)):
        token = tokens[left % len(tokens)] + tokens[right % len(tokens)]
        if len(token) < 9 and token not in tokens:
            tokens.append(token)
    order = draw(st.permutations(tokens[3:]))
    return {token: -place for place, token in enumerate([*order, "a", "b", "c"])}


@given(scored_vocabularies(), st.lists(st.text("abc", max_size=14), min_size=1, max_size=8))
def test_merges_follow_the_scores(scores: dict[str, int], texts: list[str]) -> None:
    merges = [(left, right) for left, right in merges_of(scores, scores.keys())]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({token: -score for token, score in scores.items()}, merges))
    for text in texts:
        assert inner.encode(text).tokens == joined_by_score(text, scores)


def test_all_pairs_that_make_a_token() -> None:
    assert merges_of(["abc", "ab"], {"a", "b", "c", "ab", "bc"}) == [["a", "bc"], ["ab", "c"], ["a", "b"]]


def test_only_ordinary_tokens_are_made_by_merging() -> None:
    """Nor do others take part: else a text could spell out a control token or a byte."""
    metadata = space_marked_metadata(["<", "s", ">", "<s", "x", "xs", "sx", "\u2581"])
    types = list(metadata[FIELD + "token_type"])  # type: ignore[call-overload]
    types[FIRST + 5], types[FIRST + 6] = UNUSED, USER_DEFINED
    tokenizer = built(metadata | {FIELD + "token_type": tuple(types), FIELD + "add_space_prefix": False})
    assert tokenizer.encode("<s>") == [FIRST + 3, FIRST + 2]
    assert tokenizer.encode("<s>", special=True) == [1]
    assert tokenizer.encode("xs") == [FIRST + 4, FIRST + 1]
    assert tokenizer.encode("xsxs") == [FIRST + 4, FIRST + 6, FIRST + 1], "found in the text, not merged"


@pytest.mark.parametrize("kind", [UNUSED, USER_DEFINED, CONTROL])
def test_other_tokens_make_none_by_merging(kind: int) -> None:
    """Two space marks, which no text holds as such: found neither in it nor by merging, and no part of three."""
    pieces = ["\u2581\u2581", "\u2581\u2581\u2581", "\u2581"]
    metadata = space_marked_metadata(pieces, add_space_prefix=False)
    types = list(metadata[FIELD + "token_type"])  # type: ignore[call-overload]
    assert built(metadata).encode("   ") == [FIRST + 1]
    types[FIRST] = kind
    assert built(metadata | {FIELD + "token_type": tuple(types)}).encode("   ") == [FIRST + 2] * 3


def test_a_token_of_megabytes_takes_no_time() -> None:
    """Nothing could make it, and two of the same length could not make each other."""
    long = ["ab" * 2**20, "ba" * 2**20]
    began = perf_counter()
    assert merges_of([*long, "aba"], {*long, "a", "ba", "ab", "aba"}) == [["a", "ba"], ["ab", "a"]]
    assert perf_counter() - began < 5
    made = "a" * 2**20
    assert merges_of([made * 2, made], {made * 2, made}) == [[made, made]]


def test_tokens_of_too_many_lengths_are_refused() -> None:
    tokens = ["a" * length for length in range(1, 2000)]
    with pytest.raises(CheckpointError, match="up to 1,999 characters: .* too long"):
        merges_of(tokens, frozenset(tokens))
    assert len(merges_of(tokens[:100], frozenset(tokens[:100]))) == 99 * 100 / 2


@pytest.mark.parametrize(
    ("line", "pair"),
    [("a b", ["a", "b"]), ("  a", [" ", "a"]), (" a b", [" a", "b"]), ("a  b", ["a", " b"]), ("a  ", ["a", " "])],
)
def test_a_line_of_merges_is_cut_at_its_first_inner_space(line: str, pair: list[str]) -> None:
    assert listed_merges({FIELD + "merges": (line,)}) == [pair]


@pytest.mark.parametrize("line", ["", " ", "ab", " ab"])
def test_a_line_of_merges_that_is_no_pair(line: str) -> None:
    with pytest.raises(CheckpointError, match="is not a pair of tokens"):
        listed_merges({FIELD + "merges": ("a b", line)})


# ---------------------------------------------------------------------------------------------------
# spaces and bytes


@pytest.mark.parametrize("metadata", [space_marked_metadata(PIECES), listed_metadata(add_space_prefix=True)])
def test_a_space_in_front(metadata: dict[str, object]) -> None:
    tokenizer = built(metadata)
    assert tokenizer.encode("ab a") == ids_of("\u2581ab", "\u2581a")
    assert tokenizer.encode("") == []
    assert tokenizer.encode("a<s>a", special=True) == [*ids_of("\u2581a"), 1, *ids_of("\u2581a")]
    assert tokenizer.strips_leading_space
    assert tokenizer.decode(ids_of("\u2581ab", "\u2581a")) == "ab a"


@pytest.mark.parametrize("metadata", [space_marked_metadata(PIECES, add_space_prefix=False), listed_metadata()])
def test_no_space_in_front(metadata: dict[str, object]) -> None:
    tokenizer = built(metadata)
    assert tokenizer.encode("ab a") == ids_of("ab", "\u2581a")
    assert tokenizer.encode(" ab") == ids_of("\u2581ab")
    assert not tokenizer.strips_leading_space
    assert tokenizer.decode(ids_of("\u2581ab", "\u2581a")) == " ab a"


@pytest.mark.parametrize("text", [" a", "a ", "  a   b ", "   ", "a \n b", "\ta"])
def test_runs_of_spaces_that_count_as_one(text: str) -> None:
    """Spaces alone, as the trainer of such vocabularies has it: other white space stays."""
    once = built(space_marked_metadata(PIECES, remove_extra_whitespaces=True))
    single = " ".join(part for part in text.split(" ") if part)
    assert once.encode(text) == built(space_marked_metadata(PIECES)).encode(single)
    assert once.longest_token_bytes is None


@given(st.text("ab \u00e9\u4e2d\U0001f600\n\u2581"))
def test_characters_fall_back_to_bytes_and_texts_survive(text: str) -> None:
    for metadata in (space_marked_metadata(PIECES), space_marked_metadata(PIECES, add_space_prefix=False)):
        tokenizer = built(metadata)
        ids = tokenizer.encode(text)
        assert 0 not in ids
        assert tokenizer.decode(ids, skip_special=False) == text.replace("\u2581", " ")
        assert tokenizer.decode(ids) == tokenizer._inner.decode(ids)
        assert tokenizer.longest_token_bytes is not None


def test_a_vocabulary_without_bytes_has_an_unknown_token() -> None:
    metadata = space_marked_metadata(PIECES, add_space_prefix=False)
    types = [NORMAL if 3 <= place < FIRST else kind for place, kind in enumerate(metadata[FIELD + "token_type"])]  # type: ignore[arg-type]
    tokens = [f"x{place}" if 3 <= place < FIRST else token for place, token in enumerate(metadata[FIELD + "tokens"])]  # type: ignore[arg-type]
    tokenizer = built(metadata | {FIELD + "token_type": tuple(types), FIELD + "tokens": tuple(tokens)})
    assert tokenizer.encode("a\u4e2db") == [*ids_of("a"), 0, *ids_of("b")]
    assert tokenizer.encode("a\u4e2d\u6587b\u4e2d") == [*ids_of("a"), 0, *ids_of("b"), 0], "one for a run of them"


def test_tokens_in_text() -> None:
    tokenizer = built(space_marked_metadata(PIECES))
    think = FIRST + len(PIECES)
    assert tokenizer.encode("<think>") == [think]
    assert tokenizer.special_ids == {0, 1, 2}
    assert not {0, 1, 2}.intersection(tokenizer.encode("<unk><s></s>"))
    assert tokenizer.encode("<unk><s></s>", special=True) == [0, 1, 2]
    assert tokenizer.token_bytes(3 + 0xE4) == b"\xe4"


def test_markers_of_one_family_take_the_space_behind_them() -> None:
    metadata = space_marked_metadata(PIECES, add_space_prefix=False)
    plain, stripping = built(metadata), built(metadata | {"general.architecture": "phi3"})
    think, line = FIRST + len(PIECES), 3 + 0x0A
    assert plain.encode("<think>\n a") == [think, line, *ids_of("\u2581a")]
    assert stripping.encode("<think>\n a") == [think, *ids_of("a")]
    assert stripping.encode("<s>\na", special=True) == [1, line, *ids_of("a")]
    assert stripping.encode("</s>\na", special=True) == [2, *ids_of("a")]


# ---------------------------------------------------------------------------------------------------
# what such a file may leave unsaid, and what is refused


def test_bos_if_the_file_does_not_say() -> None:
    assert vocabulary_of(space_marked_metadata(PIECES)).add_bos
    assert vocabulary_of(listed_metadata()).add_bos
    assert vocabulary_of(byte_level_metadata("llama-bpe")).add_bos
    assert not vocabulary_of(byte_level_metadata("qwen2")).add_bos


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scores", None, "scores does not have one number for each of the 267 tokens"),
        ("scores", (1.0,), "scores does not have one number"),
        ("scores", ("x",) * 267, "scores does not have one number"),
        ("token_type", (1,), "token_type does not have one entry"),
        ("tokens", None, "tokens is missing"),
        ("precompiled_charsmap", (1, 2), "precompiled_charsmap: tables of replaced characters"),
    ],
)
def test_a_vocabulary_that_cannot_work_is_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_gguf(space_marked_metadata(PIECES, **{field: value}), "file", no_tokens())


@pytest.mark.parametrize("unknown", [None, -1, 10**9, "0"])
def test_an_unknown_token_that_is_none(unknown: object) -> None:
    assert built(space_marked_metadata(PIECES, unknown_token_id=unknown)).encode("ab") == ids_of("\u2581ab")


def test_an_empty_token_is_never_found_in_a_text() -> None:
    metadata = space_marked_metadata([*PIECES, ""])
    types = [*metadata[FIELD + "token_type"][:-2], CONTROL, USER_DEFINED]  # type: ignore[index]
    assert built(metadata | {FIELD + "token_type": tuple(types)}).encode("a", special=True) == ids_of("\u2581a")


# ---------------------------------------------------------------------------------------------------
# byte-level vocabularies whose order says what is merged


def test_a_ranked_vocabulary_needs_no_merges() -> None:
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    words = ["he", "lo", "hel", "hello"]
    tokens = [*(alphabet[byte] for byte in range(256)), *words, "<end>"]
    metadata: dict[str, object] = {
        FIELD + "model": "gpt2",
        FIELD + "pre": "kimi-k2",
        FIELD + "tokens": tuple(tokens),
        FIELD + "token_type": (*[NORMAL] * 260, CONTROL),
    }
    tokenizer = built(metadata)
    assert tokenizer.encode("hello") == [259]
    assert tokenizer.encode("hellohe") == [259, 256]
    assert tokenizer.encode("helo") == [256, 257], "the lower id is made first"
    assert tokenizer.encode("<end>", special=True) == [260]
    with pytest.raises(CheckpointError, match="merges is missing"):
        built(metadata | {FIELD + "pre": "qwen2"})


def ranked_metadata(*words: str, **fields: object) -> dict[str, object]:
    """256 bytes and these words, of which "hel" is a control token."""
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    kinds = [CONTROL if word == "hel" else NORMAL for word in words]
    return {
        FIELD + "model": "gpt2",
        FIELD + "pre": "kimi-k2",
        FIELD + "tokens": (*(alphabet[byte] for byte in range(256)), *words),
        FIELD + "token_type": (*[NORMAL] * 256, *kinds),
        **{FIELD + name: value for name, value in fields.items()},
    }


def test_no_ranked_token_is_made_of_added_ones() -> None:
    words = ("he", "hel", "lo", "hello")
    assert built(ranked_metadata(*words)).encode("hellohe") == [256, ord("l"), 258, 256]
    plain = ranked_metadata(*words) | {FIELD + "token_type": [NORMAL] * 260}
    assert built(plain).encode("hellohe") == [259, 256]


def test_merges_that_a_file_lists_win_over_ranks() -> None:
    metadata = ranked_metadata("he", "lo", merges=("l o", "h e"))
    assert built(metadata).encode("helohe ") == built(ranked_metadata("he", "lo")).encode("helohe ")
    assert built(metadata | {FIELD + "merges": ("l o",)}).encode("helo") == [*b"he", 257]


@pytest.mark.parametrize("pre", ["smollm", "kimi-k2"])
def test_a_byte_level_text_loses_no_space_in_front(pre: str) -> None:
    content = vocabulary_of(byte_level_metadata(pre)).tokenizer_json(byte_level_metadata(pre))
    assert content["decoder"]["add_prefix_space"] is False  # type: ignore[index]
    tokenizer = built(byte_level_metadata(pre))
    assert not tokenizer.strips_leading_space
    assert tokenizer.decode(tokenizer.encode(" hel he")) == " hel he"
    assert tokenizer.encode("hel") != tokenizer.encode(" hel"), "nor gets one"


def test_a_content_is_json() -> None:
    for metadata in (space_marked_metadata(PIECES), listed_metadata(), byte_level_metadata()):
        text = json.dumps(vocabulary_of(metadata).tokenizer_json(metadata), ensure_ascii=False)
        assert Tokenizer(tokenizers.Tokenizer.from_str(text)).vocab_size == len(metadata[FIELD + "tokens"])  # type: ignore[arg-type]
