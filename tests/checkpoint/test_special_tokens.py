"""Tokens that files leave unsaid: fill-in-the-middle by how families write them, ends of turns by the template."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.gguf_files import ARRAY, STRING, UINT32, Value, array, gguf_bytes

from pelton.checkpoint.gguf import read_gguf
from pelton.checkpoint.special_tokens import FimTokens, from_folder, from_gguf

QWEN = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
IN_QWEN = FimTokens(prefix=2, middle=3, suffix=4, pad=5, repo=6, separator=7)


def of_gguf(path: Path, tokens: list[str], **ids: int) -> FimTokens | None:
    values: list[Value] = [("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))]
    values += [(f"tokenizer.ggml.{name}_token_id", UINT32, token) for name, token in ids.items()]
    file = path / "x.gguf"
    file.write_bytes(gguf_bytes(values))
    return from_gguf(read_gguf(file), {}).fim


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (QWEN, IN_QWEN),
        (["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<reponame>"], FimTokens(2, 4, 3, repo=5)),
        (
            ["<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>"],
            FimTokens(3, 2, 4),
        ),
        (["\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>", "\u2581<EOT>"], FimTokens(2, 4, 3)),
        (["<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"], FimTokens(2, 4, 3)),
        (["[PREFIX]", "[MIDDLE]", "[SUFFIX]"], FimTokens(2, 4, 3, suffix_first=True)),
        (["<|fim_prefix|>", "<|fim_middle|>"], None),
        ([text + "x" for text in QWEN], None),
    ],
)
def test_by_how_tokens_are_written(tmp_path: Path, tokens: list[str], expected: FimTokens | None) -> None:
    listed = ["a", "b", *tokens, "c"]
    assert of_gguf(tmp_path, listed) == expected
    entries = [{"id": token_id, "content": text} for token_id, text in enumerate(listed)]
    config: dict[str, Any] = {"added_tokens_decoder": {str(entry["id"]): entry for entry in entries}}
    assert from_folder(tmp_path, {}, {}, config).fim == expected
    vocabulary = {"model": {"vocab": {"added_tokens": 1}}, "added_tokens": entries}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    assert from_folder(tmp_path, {}, {}, {}).fim == expected


def test_ids_of_the_metadata_win(tmp_path: Path) -> None:
    named = of_gguf(tmp_path, QWEN, fim_pre=1, fim_suf=2, fim_mid=3, fim_pad=4, fim_rep=5, fim_sep=0)
    assert named == FimTokens(1, 2, 3, pad=4, repo=5, separator=0)
    assert of_gguf(tmp_path, ["a", "b", "c"], prefix=2, suffix=1, middle=0) == FimTokens(2, 1, 0)
    assert of_gguf(tmp_path, ["[PREFIX]", "b", "c"], prefix=0, suffix=1, middle=2) == FimTokens(
        0, 1, 2, suffix_first=True
    )


def test_ids_outside_the_vocabulary_are_passed_over(tmp_path: Path) -> None:
    assert of_gguf(tmp_path, ["a", "b", "c"], fim_pre=0, fim_suf=1, fim_mid=3) is None
    assert of_gguf(tmp_path, ["a", "b", *QWEN], fim_pre=0, fim_suf=1, fim_mid=10**6) == IN_QWEN


@pytest.mark.parametrize("content", ["", "{", '{"added_tokens": [', '{"added_tokens": 1}', '{"added_tokens": [1, {}]}',
                                     '{"added_tokens":' + "[" * 100_000])  # fmt: skip
def test_a_tokenizer_json_without_such_a_list(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert from_folder(tmp_path, {}, {}, {}).fim is None


def test_the_default_model_has_none(smollm2: Path) -> None:
    assert from_gguf(read_gguf(smollm2), {}).fim is None


def test_prompts() -> None:
    assert FimTokens(1, 2, 3).prompt([7, 8], [9]) == [1, 7, 8, 2, 9, 3]
    assert FimTokens(1, 2, 3, suffix_first=True).prompt([7, 8], [9]) == [2, 9, 1, 7, 8]


def test_where_texts_stand_in_an_array(tmp_path: Path) -> None:
    of_gguf(tmp_path, ["a", "bb", "a", "", "\u00e9"])
    metadata = read_gguf(tmp_path / "x.gguf").metadata
    texts = ["", "a", "\u00e9", "b", "x"]
    found = metadata.indices("tokenizer.ggml.tokens", texts)
    assert found == {"a": 0, "": 3, "\u00e9": 4}
    assert metadata["tokenizer.ggml.tokens"] == ("a", "bb", "a", "", "\u00e9")
    assert metadata.indices("tokenizer.ggml.tokens", texts) == found, "once decoded, too"
    assert metadata.indices("nothing", texts) == {}


# ---------------------------------------------------------------------------------------------------
# ends of an answer


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (None, (0,)),
        ("no marker", (0,)),
        ("{{ m }}<|end|>", (0, 2)),
        ("<|eom_id|> and <|eot_id|> and <|im_end|>", (0, 3, 4)),
        ("<|start|>{{ m }}<|end|> ... <|return|>", (0, 5)),
        ("<eos>", (0,)),
    ],
)
def test_the_chat_template_shows_what_ends_a_turn(tmp_path: Path, template: str | None, ends: tuple[int, ...]) -> None:
    """Not what is no token of the vocabulary, nor what only ends a part of an answer."""
    tokens = ["<eos>", "<|start|>", "<|end|>", "<|eom_id|>", "<|eot_id|>", "<|return|>"]
    values: list[Value] = [("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens))]
    if template is not None:
        values.append(("tokenizer.chat_template", STRING, template))
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(values))
    assert from_gguf(read_gguf(tmp_path / "x.gguf"), {"eos_token_id": 0}).eos_ids == ends


def test_the_default_model_ends_as_it_says(smollm2: Path) -> None:
    assert from_gguf(read_gguf(smollm2), {"eos_token_id": 2}).eos_ids == (2,)
