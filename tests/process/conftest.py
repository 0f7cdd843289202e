"""A tiny checkpoint that an engine process loads in no time, made without torch, and settings for it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.engine.fakes import EOS, byte_tokenizer

from pelton.core.config import EngineConfig, resolve

SIZES = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _weights() -> dict[str, np.ndarray]:
    """Random ones of a Llama, strong enough that every token matters."""
    generator = np.random.default_rng(0)

    def matrix(rows: int, columns: int, strength: float) -> np.ndarray:
        return (strength * generator.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    ones = np.ones(64, np.float32)
    weights = {"model.embed_tokens.weight": matrix(272, 64, 3.0), "lm_head.weight": matrix(272, 64, 2.0)}
    weights["model.norm.weight"] = ones
    for layer in range(2):
        shapes = {
            "self_attn.q_proj": (64, 64, 1.5),
            "self_attn.k_proj": (32, 64, 1.5),
            "self_attn.v_proj": (32, 64, 1.0),
            "self_attn.o_proj": (64, 64, 1.0),
            "mlp.gate_proj": (96, 64, 1.0),
            "mlp.up_proj": (96, 64, 1.0),
            "mlp.down_proj": (64, 96, 1.0),
        }
        for name, (rows, columns, strength) in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = matrix(rows, columns, strength)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = ones.copy()
    return weights


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers over bytes, with 4,096 tokens of context."""
    folder = tmp_path_factory.mktemp("tiny")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, **SIZES}
    config |= {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    byte_tokenizer()._inner.save(str(folder / "tokenizer.json"))
    save_file(_weights(), str(folder / "model.safetensors"))
    return folder


@pytest.fixture
def settings(tiny: Path) -> Callable[..., EngineConfig]:
    """Makes the settings of a small engine."""

    def make(**changes: object) -> EngineConfig:
        return resolve(tiny, {"num_blocks": 1000, "max_model_len": 2048, "seed": 5, "threads": 1, **changes})

    return make
