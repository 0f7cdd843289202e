"""Tokenizers of real GGUF files: the default model's, built into a cache folder of the test run."""

from pathlib import Path

import pytest
from tests.tokenize.vocabularies import no_tokens

from pelton.checkpoint.gguf import read_gguf
from pelton.tokenize.gguf_vocab import source_key
from pelton.tokenize.tokenizer import Tokenizer, tokenizer_from_gguf


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELTON_CACHE", str(tmp_path_factory.mktemp("cache")))
        return tokenizer_from_gguf(read_gguf(smollm2).metadata, source_key(smollm2), no_tokens())
