"""Tokenizers made from GGUF metadata: how words are cut, the cache, and what is refused. Goldens: test_goldens.py."""

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tokenizers
from tests.tokenize.vocabularies import (
    ARRAYS,
    FIELD,
    built,
    byte_level_metadata,
    no_tokens,
    space_marked_metadata,
)

from pelton.core.cache import kept_file
from pelton.core.errors import CheckpointError
from pelton.tokenize.gguf_vocab import cached_tokenizer_json, source_key
from pelton.tokenize.tokenizer import tokenizer_from_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


class SmallOnly(Mapping[str, object]):
    """Metadata whose arrays may not be read."""

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> object:
        assert key not in ARRAYS, f"{key} was read although the cache has the tokenizer"
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


# ---------------------------------------------------------------------------------------------------
# words


@pytest.mark.parametrize(("pre", "whole"), [("gpt-2", False), ("smollm", False), ("qwen2", False), ("llama-bpe", True)])
def test_a_word_that_merges_cannot_reach(pre: str, whole: bool) -> None:
    metadata = byte_level_metadata(pre)
    metadata[FIELD + "tokens"] = (*metadata[FIELD + "tokens"], "xyz")  # type: ignore[misc]
    metadata[FIELD + "token_type"] = (*metadata[FIELD + "token_type"], 1)  # type: ignore[misc]
    assert (built(metadata).encode("xyz") == [261]) == whole


def test_the_four_ways_to_cut_differ() -> None:
    text = "I'LL pay 12345 now\n\n  x"
    pieces = {
        name: [piece for piece, _ in pre_tokenizer(name).pre_tokenize_str(text)]
        for name in ("gpt-2", "smollm", "qwen2")
    }
    pieces["llama-bpe"] = [piece for piece, _ in pre_tokenizer("llama-bpe").pre_tokenize_str(text)]
    assert "Ġ12345" in pieces["gpt-2"]
    assert pieces["smollm"][4:10] == ["Ġ", "1", "2", "3", "4", "5"]
    assert "'LL" in pieces["qwen2"] and "12345" not in pieces["qwen2"] and "1" in pieces["qwen2"]
    assert "123" in pieces["llama-bpe"] and "45" in pieces["llama-bpe"]
    assert "".join(pieces["gpt-2"]) == "".join(pieces["llama-bpe"])


def pre_tokenizer(name: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    return built(byte_level_metadata(name))._inner.pre_tokenizer


# ---------------------------------------------------------------------------------------------------
# cache


def test_a_cache_hit_reads_no_array(cache: Path) -> None:
    metadata = byte_level_metadata()
    first = tokenizer_from_gguf(metadata, "file 1", no_tokens())
    again = tokenizer_from_gguf(SmallOnly(metadata), "file 1", no_tokens())
    assert again.encode("hello") == first.encode("hello")
    assert len(list(cache.iterdir())) == 1
    with pytest.raises(AssertionError, match="was read"):
        tokenizer_from_gguf(SmallOnly(metadata), "file 2", no_tokens())


def test_it_is_told_when_a_tokenizer_is_built(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pelton")
    for _ in range(2):
        cached_tokenizer_json(byte_level_metadata(), "file 1")
    assert caplog.messages == ["building the tokenizer, once"]


def test_another_pretokenizer_is_another_file(cache: Path) -> None:
    names = ("gpt-2", "qwen2", "llama-bpe", "smollm")
    for name in names:
        cached_tokenizer_json(byte_level_metadata(name), "same file")
    assert len(list(cache.iterdir())) == len(names)
    cached_tokenizer_json(byte_level_metadata("starcoder"), "same file")
    assert len(list(cache.iterdir())) == len(names), "it cuts as smollm does"
    for space_first in (True, False):
        cached_tokenizer_json(space_marked_metadata(["a"], add_space_prefix=space_first), "same file")
    assert len(list(cache.iterdir())) == len(names) + 2


def test_the_source_key_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    first = source_key(path)
    assert source_key(path) == first
    os.utime(path, ns=(2, 2))
    second = source_key(path)
    path.write_bytes(b"three")
    os.utime(path, ns=(2, 2))
    assert len({first, second, source_key(path)}) == 3


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"{}"])
def test_a_damaged_cached_file_is_made_again(cache: Path, damage: bytes) -> None:
    metadata = byte_level_metadata()
    cached_tokenizer_json(metadata, "file")
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage)
    assert tokenizer_from_gguf(metadata, "file", no_tokens()).decode([258]) == "he"
    assert path.read_bytes() == whole


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc", "file/x"])
def test_a_cache_folder_that_cannot_be_used_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PELTON_CACHE", place)
    assert tokenizer_from_gguf(byte_level_metadata(), "file", no_tokens()).decode([258]) == "he"


def test_a_full_disk_only_costs_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kept_file.os, "fsync", full)
    assert tokenizer_from_gguf(byte_level_metadata(), "file", no_tokens()).decode([258]) == "he"
    assert list(cache.iterdir()) == []


def test_a_crash_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept_file.os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            cached_tokenizer_json(byte_level_metadata(), "file")
    assert list(cache.iterdir()) == []


# ---------------------------------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pre", "no-such-cut", "'no-such-cut'.*Known: .*gpt-2, .*qwen2, "),
        ("pre", None, "tokenizer.ggml.pre is None"),
        ("model", "bert", "tokenizer.ggml.model is 'bert': WordPiece"),
        ("model", "t5", "tokenizer.ggml.model is 't5': .*Unigram"),
        ("model", "rwkv", "tokenizer.ggml.model is 'rwkv': .*longest"),
        ("model", "plamo2", "tokenizer.ggml.model is 'plamo2': .*PLaMo 2"),
        ("model", "no-such-kind", "'no-such-kind': a kind of vocabulary that is not known.*Supported: gpt2, llama"),
        ("model", None, "tokenizer.ggml.model is None"),
        ("tokens", None, "tokenizer.ggml.tokens is missing"),
        ("tokens", (), "tokenizer.ggml.tokens is missing"),
        ("tokens", (1, 2), "tokenizer.ggml.tokens is missing or not a list of text"),
        ("token_type", (1, 1), "tokenizer.ggml.token_type does not have one entry"),
        ("token_type", None, "tokenizer.ggml.token_type does not have one entry"),
        ("merges", ("he",), "'he' is not a pair"),
        ("merges", ("h zz",), "makes no usable tokenizer.json"),
    ],
)
def test_a_vocabulary_that_cannot_work_is_refused_by_name(field: str, value: object, message: str) -> None:
    metadata = byte_level_metadata() | {FIELD + field: value}
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_gguf(metadata, "file", no_tokens())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pre", "x" * 5000),
        ("model", "x" * 5000),
        ("pre", ("x",) * 5000),
        ("model", 5000 * ("x",)),
        ("merges", ("x" * 5000,)),
    ],
)
def test_what_a_file_says_is_cut_in_an_error(field: str, value: object) -> None:
    with pytest.raises(CheckpointError) as refusal:
        tokenizer_from_gguf(byte_level_metadata() | {FIELD + field: value}, "file", no_tokens())
    assert f"{FIELD}{field}" in refusal.value.cause
    assert len(refusal.value.cause) < 250


def test_tokens_written_alike_keep_their_ids() -> None:
    metadata = byte_level_metadata()
    metadata[FIELD + "tokens"] = (*metadata[FIELD + "tokens"], "he", "last")  # type: ignore[misc]
    metadata[FIELD + "token_type"] = (*metadata[FIELD + "token_type"], 1, 1)  # type: ignore[misc]
    tokenizer = tokenizer_from_gguf(metadata, "file", no_tokens())
    assert tokenizer.encode("he") == [258]
    assert tokenizer.known_bytes(261) is None
    assert tokenizer.known_bytes(262) == b"last"
