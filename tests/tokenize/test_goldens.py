"""Token ids of independent goldens: real vocabularies as tokenizer.json files and as GGUF metadata."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from tests.tokenize.vocabularies import (
    FIELD,
    built,
    check_plain_text,
    json_lines,
    metadata_of,
    packed_tokenizer_json,
    torture_rows,
)

from pelton.checkpoint.gguf import read_gguf
from pelton.tokenize.gguf_vocab import vocabulary_of
from pelton.tokenize.tokenizer import Tokenizer

# Vocabulary of the data -> its name in the goldens, and the pre-tokenizer a GGUF of it names.
PACKED = {
    "qwen3": ("qwen3", "qwen2"),
    "qwen3.5": ("qwen3.5", "qwen35"),
    "glm-4.5v": ("glm-4.5v", "glm4"),
    "deepseek-v3.1": ("deepseek-v3", "deepseek-v3"),
}
ROWS = 1139


def wrong_ids(tokenizer: Tokenizer, rows: Iterator[tuple[str, dict]], *, special: bool) -> list[str]:
    """Ids of the rows that come out otherwise; also checks that all rows are there and that texts come back."""
    found, wrong = 0, []
    for text, row in rows:
        found += 1
        back = tokenizer.decode(row["ids"], skip_special=False) == text
        if tokenizer.encode(text, special=special) != row["ids"] or back != row.get("roundtrip", True):
            wrong.append(row["id"])
    assert found == ROWS
    return wrong


@pytest.fixture(scope="module", params=PACKED)
def packed(request: pytest.FixtureRequest, data: Path) -> tuple[str, str, dict]:
    """Name in the goldens, pre-tokenizer and tokenizer.json of a real vocabulary."""
    goldens, pre = PACKED[request.param]
    return goldens, pre, packed_tokenizer_json(data, request.param)


@pytest.fixture(scope="module")
def packed_tokenizer(packed: tuple[str, str, dict]) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(packed[2])))


def test_a_tokenizer_json(data: Path, packed: tuple[str, str, dict], packed_tokenizer: Tokenizer) -> None:
    rows = torture_rows(data, "torture_goldens.jsonl", tokenizer=packed[0])
    assert wrong_ids(packed_tokenizer, rows, special=True) == []


def test_the_same_vocabulary_as_a_gguf(data: Path, packed: tuple[str, str, dict]) -> None:
    """Splits and options equal those of the real tokenizer.json, special tokens included."""
    goldens, pre, content = packed
    rows = torture_rows(data, "torture_goldens.jsonl", tokenizer=goldens)
    assert wrong_ids(built(metadata_of(content, pre)), rows, special=True) == []


def test_texts_survive(data: Path, packed_tokenizer: Tokenizer) -> None:
    """Also without special tokens, and as the library decodes them."""
    normalizer = packed_tokenizer._inner.normalizer
    for row in json_lines(data / "tokenizer" / "torture_strings.jsonl"):
        ids = packed_tokenizer.encode(row["text"])
        expected = normalizer.normalize_str(row["text"]) if normalizer is not None else row["text"]
        assert packed_tokenizer.decode(ids, skip_special=False) == expected
        assert packed_tokenizer._inner.decode(ids, skip_special_tokens=False) == expected


def test_special_tokens_are_text_as_to_a_whole_copy(packed_tokenizer: Tokenizer) -> None:
    check_plain_text(packed_tokenizer)


def test_the_default_model(data: Path, smollm2_tokenizer: Tokenizer) -> None:
    rows = torture_rows(data, "gguf_goldens.jsonl", tokenizer="smollm2")
    assert wrong_ids(smollm2_tokenizer, rows, special=False) == []


# Where another engine takes "</s>" for a marker, though the vocabulary says it is an ordinary piece of text.
NOT_A_MARKER = "handmade:1696"


@pytest.mark.slow
def test_a_vocabulary_with_scores(data: Path, gemma3: Path) -> None:
    metadata = read_gguf(gemma3).metadata
    assert metadata[FIELD + "model"] == "llama"
    tokenizer = built(metadata)
    rows = list(torture_rows(data, "gguf_goldens.jsonl", tokenizer="gemma3-270m"))
    assert wrong_ids(tokenizer, iter(rows), special=False) == [NOT_A_MARKER]
    ((text, row),) = [(text, row) for text, row in rows if row["id"] == NOT_A_MARKER]
    assert not row["transformers_agrees"]
    assert tokenizer.id_of("</s>") in tokenizer.encode(text)


@pytest.mark.parametrize(("pre", "cases", "composed"), [("qwen2", 46, 0), ("qwen35", 50, 3)])
def test_another_engine_agrees(data: Path, pre: str, cases: int, composed: int) -> None:
    """Both sets have the ids of Qwen3; that engine applies no NFC, which the models' own tokenizers do."""
    metadata = metadata_of(packed_tokenizer_json(data, "qwen3"), pre)
    rows = [row for row in json_lines(data / "tokenizer" / "llamacpp_vocab_cases.jsonl") if row["vocab"] == pre]
    changed = [row for row in rows if tokenizers.normalizers.NFC().normalize_str(row["text"]) != row["text"]]
    assert (len(rows), len(changed)) == (cases, composed)
    content = vocabulary_of(metadata).tokenizer_json(metadata)
    assert content["normalizer"] == {"type": "NFC"}
    uncomposed = tokenizers.Tokenizer.from_str(json.dumps(content | {"normalizer": None}))
    assert [row["text"] for row in rows if uncomposed.encode(row["text"]).ids != row["ids"]] == []
