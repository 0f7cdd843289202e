"""One toy for each registered family, and what `transformers` computes from tiny checkpoints in fp32.

Weights are drawn so that logits spread and every part of the model matters: a wrong config value must show.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.oracle.tiny_more import MORE
from tests.oracle.toy import Toy, like_all
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0],
    "short_factor": [1.0, 1.0, 1.1, 1.1, 1.2, 1.3, 1.4, 1.5],
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 48,
}
WINDOWED = ["full_attention", "sliding_attention"]
# What each variant changes in LIKE_ALL.
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
QWEN_VARIANTS: dict[str, dict[str, Any]] = {
    "listed windows": {"layer_types": WINDOWED[::-1], "max_window_layers": 28},
    "windows everywhere": {"max_window_layers": 0},
    "no windows": {"use_sliding_window": False},
    "tied": {"tie_word_embeddings": True},
    "tied, no windows": {"tie_word_embeddings": True, "use_sliding_window": False},
    "wide heads": {"head_dim": 24},
    "scaled": {"rope_parameters": YARN_ROPE, "head_dim": 32},
}

# One toy for each registered family: a new family adds its own line.
TOYS: dict[str, Toy] = {
    "llama": Toy("LlamaForCausalLM", like_all(), LLAMA_VARIANTS),
    "mistral": Toy(
        "MistralForCausalLM",
        like_all(sliding_window=20, head_dim=24),
        {
            "no window": {"sliding_window": None},
            "wide window": {"sliding_window": 64, "num_key_value_heads": 1, "num_hidden_layers": 3},
            "narrow window": {"sliding_window": 1, "tie_word_embeddings": True},
        },
    ),
    "qwen2": Toy(
        "Qwen2ForCausalLM",
        like_all(use_sliding_window=True, sliding_window=20, max_window_layers=1),
        QWEN_VARIANTS,
        idle=("max_window_layers",),
    ),
    "qwen3": Toy(
        "Qwen3ForCausalLM",
        like_all(use_sliding_window=True, sliding_window=20, max_window_layers=1, head_dim=20),
        {**QWEN_VARIANTS, "biased, no windows": {"attention_bias": True, "use_sliding_window": False}},
        idle=("max_window_layers",),
    ),
    "phi3": Toy(
        "Phi3ForCausalLM",
        like_all(sliding_window=20),
        {
            "long texts": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 64},
            "short texts": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 256},
            "factor": {
                "rope_parameters": {**LONG_ROPE, "factor": 2.0},
                "original_max_position_embeddings": 32,
                "sliding_window": None,
            },
            "tied, part of a head turned": {
                "rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.75},
                "tie_word_embeddings": True,
            },
        },
        idle=("rope_parameters.original_max_position_embeddings",),
    ),
    "olmo2": Toy(
        "Olmo2ForCausalLM",
        like_all(),
        {"biased": {"attention_bias": True, "num_key_value_heads": 4}, "tied": {"tie_word_embeddings": True}},
    ),
    "smollm3": Toy(
        "SmolLM3ForCausalLM",
        like_all(num_hidden_layers=3, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=20),
        {
            "listed": {"no_rope_layers": [0, 0, 1], "layer_types": [*WINDOWED, "full_attention"]},
            "no windows": {"num_hidden_layers": 5, "no_rope_layer_interval": 4, "use_sliding_window": False},
            "no rope at all": {"no_rope_layers": [0, 0, 0], "use_sliding_window": False},
            "biased": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        },
        idle=("no_rope_layer_interval",),
    ),
    **MORE,
}


def llama_config(**changes: Any) -> LlamaConfig:
    """The Llama toy's config with these fields changed."""
    return LlamaConfig(**like_all(**changes))


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """The Llama toy with these fields changed."""
    return TOYS["llama"].made(seed=seed, **changes)


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
    if (partial := rope.pop("partial_rotary_factor", None)) is not None:
        config["partial_rotary_factor"] = partial
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope["type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


def save(model: PreTrainedModel, folder: Path, *, shard_size: str = "1GB") -> Path:
    """Writes config.json and safetensors as the public layout has them; returns the folder."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder
