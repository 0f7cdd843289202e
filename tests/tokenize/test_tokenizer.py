"""Tokenizer: special tokens only when asked for, BOS once, bytes of tokens, and errors that name the parameter."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenize.vocabularies import SPECIALS, check_plain_text, flagged, space_marked, tiny_tokenizer

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.errors import CheckpointError, RequestError, UnsupportedModelError
from pelton.tokenize.token_bytes import byte_alphabet, spelling_of
from pelton.tokenize.tokenizer import Tokenizer, build_tokenizer, load_tokenizer_json

TINY = tiny_tokenizer()
MARKED = Tokenizer(space_marked(), bos_id=1)


@dataclass(frozen=True)
class Source:
    path: Path
    tokenizer_json: Path | None = None
    gguf_metadata: dict[str, object] | None = None
    special_tokens: SpecialTokens = SpecialTokens()


# ---------------------------------------------------------------------------------------------------
# encode


def test_special_tokens_in_text_are_plain_text_unless_asked_for() -> None:
    text = "a<|end|>b<|start|>"
    assert not TINY.special_ids.intersection(TINY.encode(text))
    assert TINY.decode(TINY.encode(text)) == text
    assert TINY.encode(text, special=True) == [*TINY.encode("a"), 1, *TINY.encode("b"), 0]
    assert not TINY.special_ids.intersection(TINY.encode(text)), "the choice may not stick"


def test_user_defined_tokens_are_one_token_always() -> None:
    assert TINY.encode("<think>") == TINY.encode("<think>", special=True) == [260]
    assert 260 not in TINY.special_ids


def test_no_text_reaches_a_control_token_of_the_default_model(smollm2_tokenizer: Tokenizer) -> None:
    special = smollm2_tokenizer.special_ids
    assert special == frozenset(range(17))
    text = "".join(smollm2_tokenizer.token_text(token_id) for token_id in sorted(special))
    assert not special.intersection(smollm2_tokenizer.encode(text))
    assert smollm2_tokenizer.encode(text, special=True) == sorted(special)


def test_special_tokens_are_text_as_to_a_whole_copy(smollm2_tokenizer: Tokenizer) -> None:
    for tokenizer in (TINY, MARKED, Tokenizer(flagged()), smollm2_tokenizer):
        check_plain_text(tokenizer)


def test_the_vocabulary_is_there_once() -> None:
    """What is shared shows: a change of the one is a change of the other."""
    tokenizer = Tokenizer(space_marked())
    tokenizer.encode("ab")
    assert tokenizer._plain is not tokenizer._inner
    tokenizer._inner.model.unk_token = "a"
    assert tokenizer._plain.model.unk_token == "a"


@given(st.text())
def test_a_text_survives(text: str) -> None:
    assert TINY.decode(TINY.encode(text), skip_special=False) == text


@pytest.mark.parametrize("text", ["\ud800", "ab\udfff", "\ud83d", "x\udcffy"])
def test_a_lone_surrogate_is_a_request_error(text: str) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D[8-F]") as caught:
        TINY.encode(text)
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError, match="stop holds") as caught:
        TINY.encode(text, param="stop")
    assert caught.value.param == "stop"


def test_a_short_text_does_not_wait_for_a_long_one() -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(TINY.encode, "the end of all <|end|> " * 40_000, special=True)
        longest = 0.0
        while not long.done():
            before = time.monotonic()
            assert TINY.encode("a<|end|>", special=True)[-1] == 1
            longest = max(longest, time.monotonic() - before)
    assert longest < 0.5 * (time.monotonic() - began)


def test_threads_do_not_mix_up_what_is_special() -> None:
    text = "he<|end|>" * 50
    plain, special = TINY.encode(text), TINY.encode(text, special=True)

    def both(_: int) -> bool:
        return TINY.encode(text) == plain and TINY.encode(text, special=True) == special

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(both, range(100)))


# ---------------------------------------------------------------------------------------------------
# BOS


def test_bos_is_added_once_where_the_model_wants_it() -> None:
    with_bos = tiny_tokenizer(add_bos=True)
    assert with_bos.encode_prompt("he") == [0, 258]
    assert with_bos.encode_prompt("<|start|>he", special=True) == [0, 258]
    assert with_bos.encode_prompt("<|start|>")[0] == 0 and len(with_bos.encode_prompt("<|start|>")) > 2
    assert with_bos.encode_prompt("") == [0]
    assert tiny_tokenizer(add_bos=False).encode_prompt("he") == [258]
    assert tiny_tokenizer().encode_prompt("he") == [258]


def test_the_files_post_processor_says_whether_bos_is_added() -> None:
    assert Tokenizer(space_marked(post_bos=True), bos_id=1).encode_prompt("a")[0] == 1
    assert Tokenizer(space_marked(), bos_id=1).encode_prompt("a")[0] != 1
    assert Tokenizer(space_marked(post_bos=True), bos_id=1, add_bos=False).encode_prompt("a")[0] != 1


# ---------------------------------------------------------------------------------------------------
# decode and bytes


@given(st.lists(st.integers(0, 260)), st.booleans())
def test_decoding_equals_the_librarys(ids: list[int], skip: bool) -> None:
    assert TINY.decode(ids, skip_special=skip) == TINY._inner.decode(ids, skip_special_tokens=skip)


def test_decoding_equals_the_librarys_for_the_default_model(smollm2_tokenizer: Tokenizer) -> None:
    tokenizer = smollm2_tokenizer

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1)), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        assert tokenizer.decode(ids, skip_special=skip) == tokenizer._inner.decode(ids, skip_special_tokens=skip)

    check()


@given(st.text(alphabet="ab \u00e9\u4e2d"))
def test_space_marks_are_decoded_as_the_library_does(text: str) -> None:
    ids = MARKED.encode(text)
    assert MARKED.decode(ids) == MARKED._inner.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_one_step_for_spaces(scheme: str) -> None:
    inner = space_marked()
    inner.normalizer = tokenizers.normalizers.Sequence([])
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    inner.decoder = tokenizers.decoders.Metaspace(prepend_scheme=scheme)
    tokenizer = Tokenizer(inner)
    assert tokenizer.strips_leading_space == (scheme != "never")
    for text in ("ab a  b", "a", "", "b  \u00e9"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == inner.decode(ids) == text
    assert tokenizer.longest_token_bytes is not None


def test_bytes_of_tokens() -> None:
    assert b"".join(TINY.token_bytes(2 + i) for i in range(256)) == bytes(byte_alphabet().values())
    assert TINY.token_bytes(259) == b"hel"
    assert TINY.token_bytes(1) == b"<|end|>"
    assert MARKED.token_bytes(3 + 0xE4) == b"\xe4"
    assert MARKED.token_bytes(MARKED.id_of("\u2581ab") or -1) == b" ab"
    assert MARKED.token_bytes(MARKED.id_of("\u00e9") or -1) == "\u00e9".encode()


def test_an_added_token_outside_the_alphabet_is_its_own_text() -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({}, []))
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<\uff5cend \u2581\uff5c>"])
    assert Tokenizer(inner).token_bytes(0).decode() == "<\uff5cend \u2581\uff5c>"


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_text_of_one_token_and_id_of_a_text() -> None:
    assert [TINY.token_text(token_id) for token_id in (0, 258, 260)] == [SPECIALS[0], "he", "<think>"]
    assert TINY.token_text(TINY.encode("\u4e2d")[0]) == "\ufffd"
    assert [TINY.id_of(text) for text in (SPECIALS[1], "hel", "nothing")] == [1, 259, None]
    assert TINY.vocab_size == 261


@pytest.mark.parametrize("token_id", [-1, 261, 2**40])
def test_an_id_outside_the_vocabulary_is_a_request_error(token_id: int) -> None:
    for call in (lambda: TINY.decode([258, token_id]), lambda: TINY.token_bytes(token_id)):
        with pytest.raises(RequestError, match=f"Token id {token_id} is not.*261 tokens"):
            call()
    assert TINY.known_bytes(token_id) is None


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": []},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "}]},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 2, "stop": 0}]},
    ],
)
def test_a_decoder_without_bytes_of_its_own_is_refused(decoder: object) -> None:
    with pytest.raises(UnsupportedModelError, match="decoder"):
        spelling_of(decoder)


# ---------------------------------------------------------------------------------------------------
# from a checkpoint


def test_from_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    inner = space_marked(post_bos=True)
    inner.enable_truncation(2)
    inner.enable_padding(length=9)
    inner.save(str(path))
    tokenizer = build_tokenizer(Source(tmp_path, path, special_tokens=SpecialTokens(bos_token="<s>")))
    assert (tokenizer.bos_id, tokenizer.add_bos) == (1, True)
    assert tokenizer.decode(tokenizer.encode_prompt("ab ab ab ab")) == "ab ab ab ab", "truncation is off"
    quiet = build_tokenizer(Source(tmp_path, path, special_tokens=SpecialTokens(bos_id=1, add_bos=False)))
    assert (quiet.bos_id, quiet.add_bos) == (1, False)


def test_a_checkpoint_without_a_usable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        build_tokenizer(Source(tmp_path))
    for content in ("", "[]", json.dumps({"model": {"type": "BPE"}})):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(CheckpointError, match="not a usable tokenizer.json"):
            load_tokenizer_json(tmp_path / "tokenizer.json")
