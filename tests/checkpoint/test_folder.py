"""Folders in the public layout: configs, templates, special tokens, and what is refused by name."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.core.errors import CheckpointError

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": [7, 8], "bos_token_id": 1}


def folder_with(path: Path, **files: object) -> Path:
    """A model folder; names with `__` for a dot, values as text or as JSON."""
    path.mkdir(exist_ok=True)
    save_file({"model.norm.weight": np.arange(4, dtype=np.float32)}, path / "model.safetensors")
    for name, content in ({"config__json": CONFIG} | files).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


def opened(path: Path, **files: object) -> Checkpoint:
    return open_checkpoint(folder_with(path, **files))


def refusal(path: Path, **files: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        opened(path, **files)
    return str(caught.value)


def test_a_plain_folder(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, tokenizer__json={}, generation_config__json={"eos_token_id": 9, "temperature": 0.6})
    assert (checkpoint.layout, checkpoint.path, checkpoint.gguf_metadata) == ("hf", tmp_path, None)
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config == {"eos_token_id": 9, "temperature": 0.6}
    assert checkpoint.tokenizer_json == tmp_path / "tokenizer.json"
    assert list(checkpoint.tensors) == ["model.norm.weight"]
    assert checkpoint.chat_template is None
    assert checkpoint.special_tokens.eos_ids == (9,)
    assert checkpoint.special_tokens.bos_id == 1
    checkpoint.close()


def test_what_is_optional(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    assert checkpoint.generation_config == {}
    assert checkpoint.tokenizer_json is None
    assert checkpoint.special_tokens.eos_ids == (7, 8)
    assert checkpoint.special_tokens.add_bos is None


def test_an_adapter_names_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base-1B"}')
    with pytest.raises(CheckpointError, match="a LoRA adapter and no model; .*not supported yet.* is 'org/base-1B'"):
        open_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json does not name"):
        open_checkpoint(tmp_path)
    assert opened(tmp_path).config == CONFIG  # a model that lies beside one


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config__json": {"chat_template": "text"}}, "text"),
        ({"tokenizer_config__json": {"chat_template": NAMED}}, "D"),
        ({"tokenizer_config__json": {"chat_template": NAMED[:1]}}, None),
        ({"tokenizer_config__json": {"chat_template": [{"name": ["a"], "template": "x"}]}}, None),
        ({"tokenizer_config__json": {"chat_template": [{"name": {}}, *NAMED]}}, "D"),
        ({"chat_template__jinja": "file é", "tokenizer_config__json": {"chat_template": "text"}}, "file é"),
        ({"chat_template__json": {"chat_template": "json"}}, "json"),
        ({"tokenizer_config__json": {}}, None),
    ],
)
def test_chat_templates(tmp_path: Path, files: dict[str, object], template: str | None) -> None:
    assert opened(tmp_path, **files).chat_template == template


def test_special_tokens_from_the_tokenizer_config(tmp_path: Path) -> None:
    tokenizer: dict[str, Any] = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "add_bos_token": True,
        "added_tokens_decoder": {"5": {"content": "<s>"}, "8": {"content": "</s>"}},
    }
    tokens = opened(tmp_path, tokenizer_config__json=tokenizer).special_tokens
    assert (tokens.bos_token, tokens.bos_id, tokens.eos_token, tokens.eos_id) == ("<s>", 5, "</s>", 8)
    assert (tokens.pad_token, tokens.pad_id, tokens.add_bos, tokens.eos_ids) == (None, None, True, (7, 8))


@pytest.mark.parametrize("key", ["9" * 5000, "9" * 11, "-1", "x", "\u00b2"])
def test_added_tokens_whose_id_is_none_are_passed_over(tmp_path: Path, key: str) -> None:
    tokenizer = {"bos_token": "<s>", "added_tokens_decoder": {key: {"content": "<s>"}}}
    tokens = opened(tmp_path, tokenizer_config__json=tokenizer).special_tokens
    assert (tokens.bos_token, tokens.bos_id) == ("<s>", CONFIG["bos_token_id"])


@pytest.mark.parametrize("value", ["x", -1, [1, None], True, 1.5])
def test_token_ids_that_are_none(tmp_path: Path, value: object) -> None:
    assert "eos_token_id is" in refusal(tmp_path, config__json=CONFIG | {"eos_token_id": value})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config__json": '{\n "a": 1,\n}'}, "config.json, line 3, column 1: malformed JSON"),
        ({"config__json": "[]"}, "config.json: holds no JSON object"),
        ({"config__json": '{"a":' + "[" * 100_000}, "config.json: JSON that cannot be read"),
        ({"config__json": '{"a": ' + "9" * 5000 + "}"}, "config.json: JSON that cannot be read"),
        ({"generation_config__json": "{"}, "generation_config.json, line 1"),
        ({"tokenizer_config__json": "nope"}, "tokenizer_config.json, line 1"),
        ({"tokenizer_config__json": {"chat_template": 3}}, "chat_template is no text"),
        ({"config__json": CONFIG | {"quantization_config": {"quant_method": "gptq"}}}, "quantization method 'gptq'"),
        (
            {"config__json": CONFIG | {"quantization_config": {}}, "quantize_config__json": {"bits": 4}},
            "'gptq' (4 bits)",
        ),
    ],
)
def test_refusals(tmp_path: Path, files: dict[str, object], words: str) -> None:
    message = refusal(tmp_path, **files)
    assert words in message
    assert str(tmp_path) in message


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (folder_with(tmp_path) / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(CheckpointError, match="not valid UTF-8 at byte 2"):
        open_checkpoint(tmp_path)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        open_checkpoint(tmp_path)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"Give the file itself: .*some\.gguf"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors", "Give its folder"),
        ("model.bin", "pickle"),
        ("model.pt", "pickle"),
        ("notes.txt", "not a GGUF file"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"some bytes that are no model")
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path / name)


def test_a_file_name_too_long_for_the_system(tmp_path: Path) -> None:
    folder_with(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"a": "x" * 5000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="File name too long") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.cause.startswith(f"{tmp_path}: ")


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system answers a process that may not look into the folder; the superuser always may."""
    exists = Path.exists

    def refused(path: Path, **options: bool) -> bool:
        if path.parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", refused)
    assert f"{tmp_path}: cannot be opened ([Errno 13] Permission denied" in refusal(tmp_path)


def test_fingerprint_follows_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    one = opened(tmp_path / "one").fingerprint()
    assert len(one) == 64 and one == opened(tmp_path / "one").fingerprint()
    assert one == opened(tmp_path / "two").fingerprint(), "the same content elsewhere"
    assert one == opened(tmp_path / "two", tokenizer__json={}).fingerprint(), "no part of the weights"
    assert one != opened(tmp_path / "two", config__json=CONFIG | {"rope_theta": 5.0}).fingerprint()
    save_file({"model.norm.weight": np.ones(4, np.float32)}, tmp_path / "one" / "model.safetensors")
    assert one != open_checkpoint(tmp_path / "one").fingerprint()


def test_fingerprint_without_a_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "file"))
    assert opened(tmp_path / "one").fingerprint() == opened(tmp_path / "one").fingerprint()
