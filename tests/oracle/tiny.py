"""Tiny random checkpoints in the public layout, and what `transformers` computes from them in fp32.

Weights are drawn so that logits spread and every part of the model matters: a wrong config value must show.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

# Models this small lose more by waiting for a second thread than it gives.
torch.set_num_threads(1)

VOCAB = 160

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 0.02,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
# What each variant changes in LLAMA.
LLAMA_VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi_head": {"num_key_value_heads": 4},
    "multi_query": {"num_key_value_heads": 1, "num_hidden_layers": 3},
    "wide_heads": {"head_dim": 24, "vocab_size": 257, "intermediate_size": 100},
    "odd_sizes": {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 70},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True, "vocab_size": 129},
    "tied": {"tie_word_embeddings": True, "vocab_size": 128},
    "small_eps": {"rms_norm_eps": 1e-6},
    "gelu_tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "long_base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3_ROPE},
}


def llama_config(**changes: Any) -> LlamaConfig:
    """LLAMA with these fields changed."""
    return LlamaConfig(**{**LLAMA, **changes})


def randomise(model: PreTrainedModel, seed: int = 0) -> None:
    """Draws all weights: gains around 1, visible biases, projections that keep the scale, strong queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(1 + 0.3 * drawn)
            elif name.endswith("bias"):
                weight.copy_(0.5 * drawn)
            elif "embed_tokens" in name:
                weight.copy_(0.4 * drawn)
            else:
                strength = 1.5 if "q_proj" in name or "k_proj" in name or "lm_head" in name else 1.0
                weight.copy_(strength * drawn / weight.shape[1] ** 0.5)


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A random Llama in fp32 with LLAMA's config, some fields changed."""
    model = LlamaForCausalLM(llama_config(**changes)).eval()
    randomise(model, seed)
    return model


# One tiny model for each registered family: a new family adds its own.
TINY_MODELS: dict[str, Callable[[], PreTrainedModel]] = {"llama": tiny_llama}


def oracle_logits(model: PreTrainedModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of one whole sequence, computed in fp32."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)]), use_cache=False).logits[0].float().numpy()


def prompt(length: int, vocab: int = 128, seed: int = 1) -> list[int]:
    """Random token ids below `vocab`."""
    return np.random.default_rng([seed, length]).integers(0, vocab, length).tolist()


def worst(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Largest difference of logits, in units of their standard deviation."""
    return float(np.abs(ours - theirs).max() / theirs.std())


def respell(folder: Path) -> None:
    """Rewrites config.json as releases before 2025 spelled it: rope_theta, rope_scaling with `type`, torch_dtype."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope["type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


def save(model: PreTrainedModel, folder: Path, *, shard_size: str = "1GB") -> Path:
    """Writes config.json and safetensors as the public layout has them; returns the folder."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder
