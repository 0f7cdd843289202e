"""Configs as public checkpoints have them: all keys are understood, and nothing needs a note."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from tests.models.published import PUBLISHED
from tests.models.published_more import IMAGES, MORE
from tests.models.test_llama_module import Source
from tests.program.sources import ShapeSource

from pelton.models import build_module, config_notes
from pelton.models.archs.llama import Llama

Config = dict[str, Any]


def sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, vocab: int) -> Config:
    given = {"num_key_value_heads": kv_heads} if kv_heads else {}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "use_cache": True,
        **given,
    }


LLAMA31_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
CONFIGS: dict[str, Config] = {
    "llama 1, early conversion": {
        **sizes(4096, 11008, 32, 32, None, 32000),
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": -1,
        "max_sequence_length": 2048,
        "rms_norm_eps": 1e-06,
        "torch_dtype": "float16",
        "transformers_version": "4.27.0.dev0",
    },
    "llama 2": {
        **sizes(4096, 11008, 32, 32, 32, 32000),
        "_name_or_path": "meta-llama/Llama-2-7b-chat-hf",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 4096,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.32.0.dev0",
    },
    "llama 3": {
        **sizes(4096, 14336, 32, 32, 8, 128256),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "max_position_embeddings": 8192,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0.dev0",
    },
    "llama 3.1": {
        **sizes(4096, 14336, 32, 32, 8, 128256),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "mlp_bias": False,
        "eos_token_id": [128001, 128008, 128009],
        "max_position_embeddings": 131072,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA31_ROPE,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
    },
    "llama 3.2": {
        **sizes(2048, 8192, 16, 32, 8, 128256),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "head_dim": 64,
        "eos_token_id": [128001, 128008, 128009],
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {**LLAMA31_ROPE, "factor": 32.0},
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
    },
    "llama 3.2, tuned and saved again": {
        **sizes(2048, 8192, 16, 32, 8, 128256),
        "_attn_implementation_autoset": True,
        "unsloth_fixed": True,
        "unsloth_version": "2024.9",
        "use_cache": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pad_token_id": 128004,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {**LLAMA31_ROPE, "factor": 32.0},
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "head_dim": 64,
    },
    "llama 3.2, saved by transformers 5": {
        **sizes(2048, 8192, 16, 32, 8, 128256),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "dtype": "bfloat16",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_parameters": {**LLAMA31_ROPE, "factor": 32.0, "rope_theta": 500000.0},
    },
    "smollm2": {
        **sizes(576, 1536, 30, 9, 3, 49152),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "mlp_bias": False,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    "tinyllama": {
        **sizes(2048, 5632, 22, 32, 4, 32000),
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 2048,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.35.0",
    },
    "yi": {
        **sizes(4096, 11008, 32, 32, 4, 64000),
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "auto_map": {"AutoConfig": "configuration_yi.YiConfig", "AutoModelForCausalLM": "modeling_yi.YiForCausalLM"},
    },
    "vicuna with long context": {
        **sizes(4096, 11008, 32, 32, 32, 32000),
        "_name_or_path": "vicuna-7b",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "max_position_embeddings": 4096,
        "max_sequence_length": 16384,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 4.0, "type": "linear"},
        "torch_dtype": "float16",
        "transformers_version": "4.31.0",
        "tie_word_embeddings": False,
    },
    "a dump of every default of transformers 4": {
        **sizes(2048, 5632, 22, 32, 4, 32000),
        "add_cross_attention": False,
        "bad_words_ids": None,
        "chunk_size_feed_forward": 0,
        "is_decoder": False,
        "cross_attention_hidden_size": None,
        "is_encoder_decoder": False,
        "output_attentions": False,
        "max_length": 20,
        "num_beams": 1,
        "pruned_heads": {},
        "tie_encoder_decoder": False,
        "typical_p": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "torchscript": False,
        "use_bfloat16": False,
        "prefix": None,
        "rms_norm_eps": 1e-05,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sep_token_id": None,
        "gradient_checkpointing": False,
        "sliding_window": None,
        "attn_implementation": "flash_attention_2",
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_all_keys_are_understood(name: str) -> None:
    config = CONFIGS[name]
    read = Llama().config(config)
    assert read.notes == ()
    assert read.frame.layers == config["num_hidden_layers"]
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert read.rope.kind == table.get("rope_type", table.get("type", "default"))
    if read.rope.kind == "llama3":
        assert read.rope.theta == 500000.0 and read.rope.options["original_max_position_embeddings"] == 8192


ALL = {**PUBLISHED, **MORE, **IMAGES}


@pytest.mark.parametrize("name", ALL)
def test_published_models_are_understood(name: str) -> None:
    """All keys, the windows, and at full size each tensor that transformers' model of this config has."""
    config, known = ALL[name].config, ALL[name]
    notes = config_notes(config)
    assert all("images are not supported" in note for note in notes) and len(notes) == (name in IMAGES)
    family = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = family(family.config_class(**deepcopy(config)))  # which changes it
    shapes = {tensor: tuple(weight.shape) for tensor, weight in model.named_parameters()}  # tied ones once
    module = build_module(Source(config, {n: ShapeSource(n, shape) for n, shape in shapes.items()}))
    assert module.weight_bytes / 2 == pytest.approx(known.parameters, rel=1e-3)
    assert {state.spec.window: state.layers for state in module.states.values()} == known.windows
