"""Configs: spellings, defaults, and refusals that name the field and its value."""

from typing import Any

import pytest
from transformers import LlamaConfig

from pelton.core.errors import UnsupportedModelError
from pelton.models import arch_for, config_notes
from pelton.models.archs.llama import Llama
from pelton.models.config import NEUTRAL

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def read(**changes: Any) -> Any:
    return Llama().config({**PLAIN, **changes})


def test_defaults_are_those_of_transformers() -> None:
    ours, theirs = read(), LlamaConfig(**PLAIN)
    assert ours.attention.kv_heads == theirs.num_key_value_heads
    assert ours.attention.head_dim == theirs.head_dim
    assert ours.attention.scale == theirs.head_dim**-0.5
    assert ours.frame.norm.eps == theirs.rms_norm_eps
    assert ours.frame.tied is theirs.tie_word_embeddings
    assert ours.context == theirs.max_position_embeddings
    assert ours.mlp.activation == theirs.hidden_act
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.kind == theirs.rope_parameters["rope_type"]


def test_every_key_that_transformers_writes_is_known() -> None:
    config = {**PLAIN, **LlamaConfig(**PLAIN).to_dict(), "architectures": ["LlamaForCausalLM"]}
    assert config_notes(config) == ()


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}, "torch_dtype": "bfloat16"},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}, "dtype": "bfloat16"},
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "llama3", **LLAMA3, "original_max_position_embeddings": 7},
            "original_max_position_embeddings": 64,
        },
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "llama3", **{k: v for k, v in LLAMA3.items() if "original" not in k}},
            "max_position_embeddings": 64,
        },
    ],
)
def test_spellings_of_rope(spelling: dict[str, Any]) -> None:
    rope = read(**spelling).rope
    assert (rope.kind, rope.theta, rope.options) == ("llama3", 5e5, LLAMA3)
    assert read(**spelling).notes == ()


def test_config_of_smollm2_is_understood() -> None:
    """Keys as the default model's config.json has them."""
    extra = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}}}
    assert read(**extra, rope_theta=100000, tie_word_embeddings=True, pad_token_id=2).notes == ()


def test_both_spellings_of_rope_must_agree() -> None:
    """transformers takes rope_scaling alone, with its own base, where both are given."""
    new, old = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}, {"type": "llama3", **LLAMA3}
    rope = read(rope_parameters=new, rope_scaling=old, rope_theta=5e5).rope
    assert (rope.kind, rope.theta, rope.options) == ("llama3", 5e5, LLAMA3)
    assert read(rope_parameters=new, rope_scaling={}).rope == rope
    for both in (
        {"rope_parameters": new, "rope_scaling": {**old, "factor": 4.0}, "rope_theta": 5e5},
        {"rope_parameters": new, "rope_scaling": old},
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ):
        with pytest.raises(UnsupportedModelError, match="rope_scaling=.*the same as in rope_parameters"):
            read(**both)


def test_no_scaling_in_old_spelling() -> None:
    rope = read(rope_theta=1e5, rope_scaling=None).rope
    assert (rope.kind, rope.theta, rope.options) == ("default", 1e5, {})


REFUSED: list[tuple[str, Any]] = [
    ("hidden_act", "gelu"),
    ("hidden_act", "relu"),
    ("hidden_act", 3),
    ("pretraining_tp", 2),
    ("sliding_window", 4096),
    ("quantization_config", {"quant_method": "gptq", "bits": 4}),
    ("partial_rotary_factor", 0.5),
    ("rope_interleaved", True),
    ("num_local_experts", 8),
    ("query_pre_attn_scalar", 256),
    ("final_logit_softcapping", 30.0),
    ("layer_types", ["full_attention", "sliding_attention"]),
    ("is_encoder_decoder", True),
    ("use_qk_norm", True),
    ("hidden_size", 64.5),
    ("hidden_size", "64"),
    ("hidden_size", True),
    ("num_hidden_layers", 0),
    ("num_key_value_heads", 3),
    ("head_dim", 15),
    ("rms_norm_eps", -1e-5),
    ("rms_norm_eps", float("nan")),
    ("rms_norm_eps", 1e-40),
    ("rms_norm_eps", 2.0),
    ("head_dim", 10**9),
    ("hidden_size", 10**9),
    ("hidden_size", 2**63),
    ("intermediate_size", 2**25),
    ("num_attention_heads", 2**17),
    ("num_hidden_layers", 10**6),
    ("vocab_size", 2**25),
    ("max_position_embeddings", 2**31),
    ("attention_bias", "yes"),
    ("tie_word_embeddings", 1),
    ("rope_theta", 0),
    ("rope_theta", 0.5),
    ("rope_theta", 1e-308),
    ("rope_theta", 1e300),
    ("rope_scaling", [1]),
    ("position_embedding_type", "alibi"),
    ("position_embedding_type", "none"),
    ("is_causal", False),
    ("use_rope", False),
    ("hidden_activation", "relu"),
    ("scale_emb", 12),
    ("scale_depth", 1.4),
    ("dim_model_base", 256),
    ("rotary_dim", 32),
    ("rope_pct", 0.25),
    ("qk_norm", True),
    ("llama.logit_scale", 0.0625),
    ("llama.attention.scale", 0.015625),
    ("llama.attention.clamp_kqv", 8.0),
    ("llama.attention.causal", False),
    ("llama.attention.max_alibi_bias", 8.0),
    ("llama.embedding_scale", 12.0),
    ("llama.residual_scale", 0.22),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_refusals_name_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read(**{field: value})
    assert field in refusal.value.cause
    assert repr(value) in refusal.value.cause
    assert refusal.value.remedy.startswith("Supported: ")


HUGE = "head_dim hidden_size rms_norm_eps rope_theta vocab_size num_hidden_layers max_position_embeddings".split()


@pytest.mark.parametrize("field", HUGE)
def test_integers_too_large_for_a_float_are_refused(field: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{field}=1000"):
        read(**{field: 10**400})


ROPE_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("rope_scaling.rope_type", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
    ("rope_scaling.rope_type", {"rope_scaling": {"rope_type": "yarn4", "factor": 2.0}}),
    ("rope_parameters.rope_type", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}),
    ("rope_parameters.rope_type", {"rope_parameters": {"full_attention": {}, "rope_type": 3}}),
    ("rope_scaling.factor", {"rope_scaling": {"type": "linear", "factor": 0}}),
    ("rope_scaling.factor", {"rope_scaling": {"type": "linear", "factor": 1e-300}}),
    ("rope_scaling.factor", {"rope_scaling": {"type": "linear", "factor": 10**400}}),
    ("rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": 1e-308}}),
    ("rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": "1e4"}}),
    ("rope_parameters.partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    ("rope_scaling.attention_factor", {"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 1.2}}),
    ("rope_scaling.mscale", {"rope_scaling": {"type": "linear", "factor": 2.0, "mscale": 0.7}}),
    ("rope_scaling.long_factor", {"rope_scaling": {"type": "linear", "factor": 2.0, "long_factor": [1.0]}}),
    ("rope_scaling.type", {"rope_scaling": {**LLAMA3, "rope_type": "llama3", "type": "linear"}}),
    ("rope_scaling.factor", {"rope_scaling": {"type": "linear", "factor": 0.5}}),
]


@pytest.mark.parametrize(("field", "changes"), ROPE_REFUSED)
def test_refusals_of_rope_name_the_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read(**changes)
    assert f"{field}=" in refusal.value.cause


@pytest.mark.parametrize("field", sorted(NEUTRAL))
def test_neutral_values_pass(field: str) -> None:
    for value in (None, *NEUTRAL[field]):
        assert read(**{field: value}).notes == ()


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"])
def test_missing_sizes_are_named(field: str) -> None:
    config = {name: value for name, value in PLAIN.items() if name != field}
    with pytest.raises(UnsupportedModelError, match=f"no {field}"):
        Llama().config(config)


def test_a_head_size_that_does_not_divide_must_be_given() -> None:
    with pytest.raises(UnsupportedModelError, match="no head_dim"):
        read(hidden_size=66)
    assert read(hidden_size=66, head_dim=16).attention.head_dim == 16


def test_unknown_keys_become_notes() -> None:
    notes = read(
        zeta_gate=1, beta_gate=False, null_gate=None, rope_scaling={"type": "linear", "factor": 2.0, "mscale": 1.0}
    ).notes
    assert [note.split("'")[2] for note in notes] == ["beta_gate", "zeta_gate"]


UNKNOWN: list[tuple[str, Any]] = [
    ("rope_base_local", 1e4),
    ("qkv_bias_kind", "full"),
    ("use_layernorm_x", True),
    ("embedding_scaling", 0),
    ("attention_sink_size", 4),
    ("moe_layers", [1]),
    ("my_window", 512),
    ("logit_clamp", 30),
    ("llama.rope.dimension_sections", [1, 2]),
    ("llama.attention.temperature_length", 8192),
    ("llama.expert_weights_scale", 2.0),
    ("layer_norm_eps", 1e-5),
]


@pytest.mark.parametrize(("field", "value"), UNKNOWN)
def test_unknown_keys_that_may_matter_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="may change the result") as refusal:
        read(**{field: value})
    assert f"{field}={value!r}, which is unknown" in refusal.value.cause
    for off in (None, False, "", [], {}):
        assert read(**{field: off}).notes == ()


def test_long_values_are_cut() -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read(quantization_config={"modules": ["x" * 50] * 50})
    assert len(refusal.value.cause) < 200


def test_families_are_found_by_either_name() -> None:
    assert isinstance(arch_for({"architectures": ["LlamaForCausalLM"], "model_type": "other"}), Llama)
    assert isinstance(arch_for({"model_type": "llama"}), Llama)
    assert isinstance(arch_for({"architectures": [], "model_type": "llama"}), Llama)
    for config in ({"architectures": ["FalconForCausalLM"]}, {"model_type": "falcon"}, {}):
        with pytest.raises(UnsupportedModelError, match="Families that are: bloom, .*llama, ") as refusal:
            arch_for(config)
        assert repr(config.get("architectures", [config.get("model_type")])[0]) in refusal.value.cause  # type: ignore[index]
    with pytest.raises(UnsupportedModelError) as refusal:
        arch_for({"model_type": "x" * 5000})
    assert len(refusal.value.cause) < 200
