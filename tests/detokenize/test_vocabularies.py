"""TokenStream with real vocabularies: any token sequence in any split joins to the full decode, and texts survive."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenize.vocabularies import built, json_lines, packed_tokenizer_json

from pelton.checkpoint.gguf import read_gguf
from pelton.core.environment import cache_folder
from pelton.detokenize.stream import TokenStream
from pelton.tokenize.token_bytes import byte_alphabet
from pelton.tokenize.tokenizer import Tokenizer

PACKED = ("qwen3", "qwen3.5", "glm-4.5v", "deepseek-v3.1")
GEMMA, MISTRAL = "gemma3-270m", "mistral-v0.1"
SIZES = st.lists(st.integers(0, 4), max_size=40)


@pytest.fixture(
    scope="module",
    params=[*PACKED, "smollm2", *(pytest.param(name, marks=pytest.mark.slow) for name in (GEMMA, MISTRAL))],
)
def vocabulary(request: pytest.FixtureRequest) -> Tokenizer:
    """A real vocabulary; those that the data lacks only where they were fetched."""
    if request.param == "smollm2":
        return request.getfixturevalue("smollm2_tokenizer")
    if request.param == GEMMA:
        return built(read_gguf(request.getfixturevalue("gemma3")).metadata)
    if request.param == MISTRAL:
        path = cache_folder() / "vocabularies" / "lenml-llama2.tokenizer.json"
        if not path.is_file():
            pytest.skip("the vocabulary is not there: python tools/fetch_vocabularies.py mistral-v0.1")
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    content = packed_tokenizer_json(request.getfixturevalue("data"), request.param)
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))


def pieces(tokenizer: Tokenizer, ids: Sequence[int], sizes: Sequence[int], *, skip: bool = True) -> list[str]:
    """What a stream gives for `ids` pushed in chunks of these sizes, the last one to the end, and when it is ended."""
    stream = TokenStream(tokenizer, skip_special=skip)
    chunks, start = [], 0
    for size in sizes:
        chunks.append(ids[start : start + size])
        start += size
    return [*(stream.add(chunk) for chunk in [*chunks, ids[start:]]), stream.finish()]


def in_any_split(ids: Sequence[int], random: Random) -> Iterator[int]:
    """Sizes of chunks, most of them of one token."""
    left = len(ids)
    while left > 0:
        size = random.choice((0, 1, 1, 1, 2, 5))
        left -= size
        yield size


def ids_of_all_bytes(tokenizer: Tokenizer) -> dict[int, int]:
    """Byte -> its token, however the vocabulary spells bytes. SmolLM2's has none for some that hardly a text holds."""
    spelled = {byte: char for char, byte in byte_alphabet().items()}
    marked = tokenizer.id_of("<0x00>") is not None
    names = {byte: f"<0x{byte:02X}>" if marked else spelled[byte] for byte in range(256)}
    return {byte: token_id for byte, name in names.items() if (token_id := tokenizer.id_of(name)) is not None}


def test_any_tokens_in_any_split(vocabulary: Tokenizer) -> None:
    last = vocabulary.vocab_size - 1
    known = [i for i in range(0, last, 7) if vocabulary.known_bytes(i) is not None]
    broken = [i for i in known if "\ufffd" in vocabulary.token_text(i)]
    broken += [token_id for byte, token_id in ids_of_all_bytes(vocabulary).items() if byte > 127]
    assert len(broken) > 100, "tokens that are no whole characters are the interesting ones"
    special = sorted(vocabulary.special_ids) or [0]
    anything = st.sampled_from(known) | st.sampled_from(broken) | st.sampled_from(special)

    @given(st.lists(anything, max_size=30), SIZES, st.booleans())
    def check(ids: list[int], sizes: list[int], skip: bool) -> None:
        assert "".join(pieces(vocabulary, ids, sizes, skip=skip)) == vocabulary.decode(ids, skip_special=skip)

    check()


def test_no_piece_ends_in_half_a_character(vocabulary: Tokenizer) -> None:
    @given(
        st.text(max_size=30) | st.text("e\u0301\u4e2d\U00020000\U0001f468\u200d\U0001f469\ufe0f ", max_size=12), SIZES
    )
    def check(text: str, sizes: list[int]) -> None:
        ids = vocabulary.encode(text)
        whole = vocabulary.decode(ids, skip_special=False)
        given_out = pieces(vocabulary, ids, sizes, skip=False)
        assert "".join(given_out) == whole
        if "\ufffd" not in whole:  # else the text held one, or bytes that the vocabulary has no token for
            assert given_out[-1] == "" and not any("\ufffd" in piece for piece in given_out)

    check()


def test_torture_strings_survive_in_any_split(data: Path, vocabulary: Tokenizer) -> None:
    random = Random(7)
    normalizer = vocabulary._inner.normalizer
    changes = normalizer is not None and normalizer.normalize_str("e\u0301") == "\u00e9"
    wrong, rows = [], json_lines(data / "tokenizer" / "torture_strings.jsonl")
    for row in rows:
        text = normalizer.normalize_str(row["text"]) if changes else row["text"]
        ids = vocabulary.encode(row["text"])
        if "".join(pieces(vocabulary, ids, list(in_any_split(ids, random)), skip=False)) != text:
            wrong.append(row["id"])
    assert len(rows) > 1000
    assert wrong == []


def test_malformed_bytes_in_any_split(data: Path, vocabulary: Tokenizer) -> None:
    random = Random(11)
    tokens = ids_of_all_bytes(vocabulary)
    assert len(tokens) > 230
    cases = json_lines(data / "tokenizer" / "utf8_decoder_cases.jsonl")
    raws = [(bytes.fromhex(row["hex"]), bytes.fromhex(row["replace_hex"] or row["hex"]).decode()) for row in cases]
    whole = bytes(byte for byte in (data / "tokenizer" / "UTF-8-test.txt").read_bytes() if byte in tokens)
    raws = [(raw, expected) for raw, expected in raws if tokens.keys() >= set(raw)]
    assert len(raws) > 80 and "\ufffd" in whole.decode("utf-8", "replace")
    # A vocabulary that drops a space in front drops it from these texts too.
    for raw, expected in [*raws, (whole, whole.decode("utf-8", "replace"))]:
        ids = [tokens[byte] for byte in raw]
        shown = expected.removeprefix(" ") if vocabulary.strips_leading_space else expected
        assert "".join(pieces(vocabulary, ids, [1] * len(ids))) == shown
        assert "".join(pieces(vocabulary, ids, list(in_any_split(ids, random)))) == shown
