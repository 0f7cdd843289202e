"""More toys, of families whose layers are not all alike or that name things their own way; see tiny.TOYS."""

from typing import Any

import torch
from tests.oracle.toy import Toy, like_all
from transformers import PreTrainedModel


class GainLessOne(Toy):
    """Of families that store the gains of norms less one."""

    def made(self, variant: str | None = None, seed: int = 0, **changes: Any) -> PreTrainedModel:
        model = super().made(variant, seed, **changes)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight -= 1
        return model


HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
SLIDING, FULL = "sliding_attention", "full_attention"
LOCAL = {"rope_type": "default", "rope_theta": 500.0}
GLOBAL = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
# Windows below the prompts' lengths, caps that the scores reach, scores scaled by something else than the head's width.
GEMMA2 = like_all(
    num_hidden_layers=3,
    head_dim=24,
    sliding_window=20,
    query_pre_attn_scalar=16,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=5.0,
    tie_word_embeddings=True,
)
GEMMA3: dict[str, Any] = {
    **GEMMA2,
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
    "rope_parameters": {SLIDING: LOCAL, FULL: GLOBAL},
    "attn_logit_softcapping": None,
}
GLM = like_all(head_dim=24, rope_parameters=HALF, attention_bias=True)
BLOOM: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "n_layer": 2,
    "n_head": 4,
    "layer_norm_epsilon": 0.02,
    "seq_length": 512,
    "pad_token_id": None,
}

GLM_VARIANTS: dict[str, dict[str, Any]] = {
    "no biases": {"attention_bias": False, "num_key_value_heads": 4},
    "whole heads": {"rope_parameters": {**HALF, "partial_rotary_factor": 1.0}, "head_dim": 16},
    "a quarter": {"rope_parameters": {**HALF, "partial_rotary_factor": 0.25}, "num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "scaled": {"rope_parameters": {**HALF, "rope_type": "linear", "factor": 4.0}},
}

MORE: dict[str, Toy] = {
    "gemma2": GainLessOne(
        "Gemma2ForCausalLM",
        GEMMA2,
        {
            "uncapped": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
            "listed": {"layer_types": [FULL, FULL, SLIDING], "sliding_window": 33},
            "biased, with a head": {"attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 4},
            "silu": {"hidden_activation": "silu", "num_key_value_heads": 1},
            "scaled": {"rope_parameters": GLOBAL, "sliding_window": 1},
        },
    ),
    "gemma3": GainLessOne(
        "Gemma3ForCausalLM",
        GEMMA3,
        {
            "six": {"num_hidden_layers": 7, "layer_types": None, "final_logit_softcapping": None},
            "all windowed": {"layer_types": [SLIDING] * 4, "sliding_window": 64},
            "no windows": {"layer_types": [FULL] * 4, "num_key_value_heads": 1},
            "biased, with a head": {"attention_bias": True, "tie_word_embeddings": False},
            "silu": {"hidden_activation": "silu", "num_key_value_heads": 4},
            "unscaled": {"rope_parameters": {SLIDING: {**LOCAL, "rope_theta": 10000.0}, FULL: {**LOCAL}}},
        },
        idle=("_sliding_window_pattern",),  # layer_types says it
    ),
    "glm4": Toy("Glm4ForCausalLM", GLM, GLM_VARIANTS),
    "bloom": Toy(
        "BloomForCausalLM",
        BLOOM,
        {
            "six heads": {"n_head": 6, "hidden_size": 48},
            "one head": {"n_head": 1},
            "with a head": {"tie_word_embeddings": False},
        },
        idle=("pretraining_tp", "seq_length", "slow_but_exact"),
    ),
}
# Of families above that have more than one class in transformers, the others.
OTHERS: dict[str, Toy] = {"glm": Toy("GlmForCausalLM", GLM, GLM_VARIANTS)}
