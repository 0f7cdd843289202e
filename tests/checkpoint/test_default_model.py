"""The real default model: its values, its tensors against the gguf package, and its vocabulary."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.checkpoint.checksum import read_digest
from pelton.checkpoint.fetch.sources import DEFAULT_MODEL, SHORT_NAMES
from pelton.program.formats import FORMATS


@pytest.fixture(scope="module")
def checkpoint(smollm2: Path) -> Checkpoint:
    return open_checkpoint(smollm2)


def test_the_file_is_the_one_in_the_table(smollm2: Path) -> None:
    source = SHORT_NAMES[DEFAULT_MODEL]
    assert smollm2.stat().st_size == source.size
    assert read_digest(smollm2) == source.sha256


def test_config(checkpoint: Checkpoint) -> None:
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0, "max_position_embeddings": 8192, "vocab_size": 49152, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip
    tokens = checkpoint.special_tokens
    assert (tokens.bos_token, tokens.eos_token, tokens.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert (tokens.eos_ids, tokens.add_bos) == ((2,), False)
    assert checkpoint.chat_template is not None
    assert "<|im_start|>" in checkpoint.chat_template


def test_vocabulary(checkpoint: Checkpoint) -> None:
    metadata = checkpoint.gguf_metadata
    assert metadata is not None
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, tuple) and isinstance(merges, tuple)
    assert (len(tokens), len(merges)) == (49152, 48900)
    assert metadata.element("tokenizer.ggml.tokens", 2) == tokens[2] == "<|im_end|>"
    assert merges[:2] == ("Ġ t", "Ġ a")


def test_every_tensor_is_where_the_gguf_package_finds_it(checkpoint: Checkpoint, smollm2: Path) -> None:
    by_name = {tensor.name: tensor for tensor in checkpoint.tensors.values()}
    reader = GGUFReader(smollm2)
    assert len(by_name) == len(reader.tensors) == 272
    for theirs in reader.tensors:
        ours = by_name[theirs.name]
        assert ours.format == theirs.tensor_type.name
        assert list(ours.shape) == [int(n) for n in reversed(theirs.shape)]
        assert np.array_equal(np.frombuffer(ours.read(), np.uint8), theirs.data.reshape(-1).view(np.uint8))
        ours.release()


@pytest.mark.parametrize("name", ["model.layers.3.self_attn.k_proj.weight", "model.layers.29.mlp.down_proj.weight"])
def test_decoded_weights(checkpoint: Checkpoint, name: str) -> None:
    tensor = checkpoint.tensors[name]
    rows, cols = tensor.shape
    raw = np.frombuffer(tensor.read(), np.uint8).reshape(rows, -1)
    theirs = quants.dequantize(raw, GGMLQuantizationType[tensor.format])
    assert FORMATS[tensor.format].decode(tensor.read(), rows, cols).tobytes() == theirs.tobytes()
