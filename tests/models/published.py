"""Configs of well-known checkpoints, with what else is known of them: parameters and windows. Facts, no code."""

from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]

FULL = "full_attention"
# The divisors themselves do not matter here; there is one for each rotated pair.
LONG: Config = {"type": "longrope", "long_factor": [1.1] * 48, "short_factor": [1.0] * 48}


@dataclass(frozen=True)
class Published:
    """A checkpoint's config.json. `parameters` counts tied ones once; `windows`: how many layers have which."""

    config: Config
    parameters: float
    windows: dict[int | None, int]


def sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int) -> Config:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def mistral(context: int, theta: float, window: int | None, version: str, **more: Any) -> Config:
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-05,
        "rope_theta": theta,
        "sliding_window": window,
        "tie_word_embeddings": False,
        "transformers_version": version,
        **more,
    }


def qwen(version: int, context: int, first: int, window: int | None, tied: bool, **more: Any) -> Config:
    return {
        "architectures": [f"Qwen{version}ForCausalLM"],
        "model_type": f"qwen{version}",
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "max_position_embeddings": context,
        "max_window_layers": first,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": window,
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
        **more,
    }


QWEN3: Config = {"attention_bias": False, "head_dim": 128, "rope_scaling": None, "rope_theta": 1000000}


def phi(context: int, original: int, window: int | None, scaling: Config | None, **more: Any) -> Config:
    return {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_phi3.Phi3Config",
            "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        },
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "max_position_embeddings": context,
        "original_max_position_embeddings": original,
        "rms_norm_eps": 1e-05,
        "rope_scaling": scaling,
        "rope_theta": 10000.0,
        "sliding_window": window,
        "tie_word_embeddings": False,
        **more,
    }


def olmo(version: str, **more: Any) -> Config:
    return {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": 100257,
        "pad_token_id": 100277,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 500000,
        "tie_word_embeddings": False,
        "transformers_version": version,
        **more,
    }


SMOLLM3: Config = {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 128012,
    "pad_token_id": 128004,
    "layer_types": [FULL] * 36,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "pretraining_tp": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "transformers_version": "4.54.0.dev0",
    "use_sliding_window": False,
}

PUBLISHED: dict[str, Published] = {
    "mistral 7b v0.1": Published(
        {**sizes(4096, 14336, 32, 32, 8, 32000), **mistral(32768, 10000.0, 4096, "4.34.0.dev0")}, 7.242e9, {4096: 32}
    ),
    "mistral 7b v0.3": Published(
        {
            **sizes(4096, 14336, 32, 32, 8, 32768),
            **mistral(32768, 1000000.0, None, "4.42.0.dev0", attention_dropout=0.0),
        },
        7.248e9,
        {None: 32},
    ),
    "mistral nemo": Published(
        {**sizes(5120, 14336, 40, 32, 8, 131072), **mistral(128000, 1000000.0, None, "4.43.3", head_dim=128)},
        12.248e9,
        {None: 40},
    ),
    "qwen 2.5 0.5b": Published(
        {**sizes(896, 4864, 24, 14, 2, 151936), **qwen(2, 32768, 24, 32768, True, use_mrope=False)},
        0.494e9,
        {None: 24},
    ),
    "qwen 2.5 7b": Published(
        {**sizes(3584, 18944, 28, 28, 4, 152064), **qwen(2, 131072, 28, 131072, False)}, 7.616e9, {None: 28}
    ),
    "qwen 2.5, stretched": Published(
        {
            **sizes(3584, 18944, 28, 28, 4, 152064),
            **qwen(2, 32768, 28, 131072, False),
            "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        },
        7.616e9,
        {None: 28},
    ),
    "qwen 3 0.6b": Published(
        {**sizes(1024, 3072, 28, 16, 8, 151936), **qwen(3, 40960, 28, None, True), **QWEN3}, 0.596e9, {None: 28}
    ),
    "qwen 3 8b": Published(
        {**sizes(4096, 12288, 36, 32, 8, 151936), **qwen(3, 40960, 36, None, False), **QWEN3}, 8.191e9, {None: 36}
    ),
    "qwen 3 8b, saved by later transformers": Published(
        {
            **sizes(4096, 12288, 36, 32, 8, 151936),
            **qwen(3, 40960, 36, None, False),
            **QWEN3,
            "layer_types": [FULL] * 36,
            "dtype": "bfloat16",
        },
        8.191e9,
        {None: 36},
    ),
    "phi 3 mini 4k": Published(
        {**sizes(3072, 8192, 32, 32, 32, 32064), **phi(4096, 4096, 2047, None, pad_token_id=32000)}, 3.821e9, {2047: 32}
    ),
    "phi 3 mini 128k": Published(
        {**sizes(3072, 8192, 32, 32, 32, 32064), **phi(131072, 4096, 262144, LONG)}, 3.821e9, {262144: 32}
    ),
    "phi 4": Published(
        {
            **sizes(5120, 17920, 40, 40, 10, 100352),
            **phi(16384, 16384, None, None, rope_theta=250000, partial_rotary_factor=1.0, pad_token_id=100349),
        },
        14.660e9,
        {None: 40},
    ),
    "phi 4 mini": Published(
        {
            **sizes(3072, 8192, 32, 24, 8, 200064),
            **phi(131072, 4096, 262144, LONG, partial_rotary_factor=0.75, tie_word_embeddings=True),
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "mlp_bias": False,
        },
        3.836e9,
        {262144: 32},
    ),
    "olmo 2 1b": Published({**sizes(2048, 8192, 16, 16, 16, 100352), **olmo("4.47.0")}, 1.485e9, {None: 16}),
    "olmo 2 7b": Published(
        {**sizes(4096, 11008, 32, 32, 32, 100352), **olmo("4.47.0.dev0", use_cache=False)}, 7.299e9, {None: 32}
    ),
    "smollm 3 3b": Published({**sizes(2048, 11008, 36, 16, 4, 128256), **SMOLLM3}, 3.075e9, {None: 36}),
}
