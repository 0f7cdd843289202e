"""What further families read of a config where it says little, what they refuse, and the names they take tensors by."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.models.published_more import IMAGES, MORE, gemma3
from tests.models.test_llama_module import Source
from tests.program.sources import ShapeSource
from transformers import BloomConfig, Gemma2Config, Gemma3TextConfig, Glm4Config, GlmConfig, PretrainedConfig

from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.models import arch_for, build_module, config_notes
from pelton.program.module import Module

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 13,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, type[PretrainedConfig]] = {
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
    "glm4": Glm4Config,
    "glm": GlmConfig,
}
BLOOM: dict[str, Any] = {"model_type": "bloom", "vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}


def read(family: str, **changes: Any) -> Any:
    config = {"model_type": family, **SIZES, **changes}
    return arch_for(config).config(config)


def read_bloom(**changes: Any) -> Any:
    return arch_for(BLOOM).config({**BLOOM, **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    ours, theirs = read(family), FAMILIES[family](**SIZES)
    assert ours.notes == ()
    assert ours.attention.head_dim == theirs.head_dim
    scale = getattr(theirs, "query_pre_attn_scalar", theirs.head_dim) ** -0.5
    assert ours.attention.scale == pytest.approx(scale, rel=1e-15)
    assert ours.attention.softcap == (getattr(theirs, "attn_logit_softcapping", None) or 0.0)
    assert ours.frame.softcap == (getattr(theirs, "final_logit_softcapping", None) or 0.0)
    assert ours.frame.norm.eps == theirs.rms_norm_eps
    assert ours.frame.tied is theirs.tie_word_embeddings
    assert ours.frame.embed_scale == (8.0 if "gemma" in family else 1.0)
    assert ours.context == theirs.max_position_embeddings
    activation = getattr(theirs, "hidden_activation", None) or theirs.hidden_act
    assert ours.mlp.activation == {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}[activation]
    table = theirs.rope_parameters.get(FULL, theirs.rope_parameters)
    assert (ours.rope.kind, ours.rope.theta) == (table["rope_type"], table["rope_theta"])
    assert ours.rope.dim == theirs.head_dim * table.get("partial_rotary_factor", 1)
    if ours.window_rope is not None:
        local = theirs.rope_parameters[SLIDING]
        assert (ours.window_rope.kind, ours.window_rope.theta) == (local["rope_type"], local["rope_theta"])
    kinds = getattr(theirs, "layer_types", [FULL] * 13)
    assert [window is not None for window in ours.windows or [None] * 13] == [kind == SLIDING for kind in kinds]
    assert {window for window in ours.windows if window} <= {getattr(theirs, "sliding_window", None)}


def test_defaults_of_bloom_are_those_of_transformers() -> None:
    ours, theirs = read_bloom(), BloomConfig(**BLOOM)
    assert ours.notes == ()
    assert ours.frame.norm.eps == theirs.layer_norm_epsilon
    assert ours.frame.tied is theirs.tie_word_embeddings
    assert (ours.attention.heads, ours.frame.layers, ours.mlp.inner) == (theirs.n_head, theirs.n_layer, 256)


def test_spellings_of_bloom() -> None:
    long = {key: value for key, value in BLOOM.items() if not key.startswith("n_")}
    long |= {"num_hidden_layers": 2, "num_attention_heads": 4, "layer_norm_eps": 1e-5}
    assert arch_for(long).config(long) == read_bloom(layer_norm_epsilon=1e-5)
    assert read_bloom(hidden_size=None, n_embed=64) == read_bloom()
    assert read_bloom(num_attention_heads=4) == read_bloom()
    assert read_bloom(n_inner=256) == read_bloom()
    assert read_bloom(seq_length=512).context == 512
    with pytest.raises(UnsupportedModelError, match="n_head=4.*the same as in num_attention_heads"):
        read_bloom(num_attention_heads=8)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("gemma2", {"sliding_window": 7}, [7, None] * 6 + [7]),
        ("gemma2", {"sliding_window": 7, "sliding_window_size": 7}, [7, None] * 6 + [7]),
        ("gemma2", {"sliding_window": 7, "layer_types": [FULL] * 12 + [SLIDING]}, [None] * 12 + [7]),
        ("gemma3_text", {"sliding_window": 7}, [*[7] * 5, None] * 2 + [7]),
        ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 4}, [7, 7, 7, None] * 3 + [7]),
        ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 1}, [None] * 13),
        ("gemma3_text", {"sliding_window": None, "sliding_window_pattern": 1}, [None] * 13),
        ("gemma3_text", {"sliding_window": 7, "layer_types": [FULL] * 12 + [SLIDING]}, [None] * 12 + [7]),
        ("gemma3_text", {"layer_types": [FULL] * 13, "sliding_window_pattern": 2}, [None] * 13),
    ],
)
def test_windows(family: str, changes: dict[str, Any], expected: list[int | None]) -> None:
    assert list(read(family, **changes).windows) == expected
    theirs = FAMILIES[family](**SIZES, **changes)
    assert [window is not None for window in expected] == [kind == SLIDING for kind in theirs.layer_types]


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                SLIDING: {"rope_type": "default", "rope_theta": 2e4},
            }
        },
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 2e4,
            "rope_parameters": {FULL: {"rope_type": "linear", "factor": 8.0}, SLIDING: {"rope_type": "default"}},
        },
    ],
)
def test_spellings_of_two_kinds_of_rotation(changes: dict[str, Any]) -> None:
    """The scaling is that of layers without a window; the context is what it was stretched to."""
    ours = read("gemma3_text", **changes)
    assert (ours.rope.kind, ours.rope.theta, ours.rope.options) == ("linear", 5e5, {"factor": 8.0})
    assert (ours.window_rope.kind, ours.window_rope.theta) == ("default", 2e4)
    assert ours.context == 131072
    theirs = Gemma3TextConfig(**SIZES, **changes).rope_parameters
    assert (theirs[FULL]["rope_theta"], theirs[SLIDING]["rope_theta"]) == (5e5, 2e4)


REFUSED: list[tuple[str, str, Any]] = [
    ("gemma2", "hidden_act", "silu"),
    ("gemma2", "hidden_activation", "gelu"),
    ("gemma2", "use_bidirectional_attention", True),
    ("gemma2", "query_pre_attn_scalar", 0),
    ("gemma2", "attn_logit_softcapping", -1.0),
    ("gemma2", "final_logit_softcapping", "30"),
    ("gemma2", "sliding_window", None),
    ("gemma2", "sliding_window", 0),
    ("gemma2", "sliding_window_size", 512),
    ("gemma2", "layer_types", [FULL]),
    ("gemma2", "rope_local_base_freq", 10000.0),
    ("gemma2", "partial_rotary_factor", 0.5),
    ("gemma3_text", "attn_logit_softcapping", 50.0),
    ("gemma3_text", "use_bidirectional_attention", True),
    ("gemma3_text", "sliding_window", None),
    ("gemma3_text", "sliding_window_pattern", 0),
    ("gemma3_text", "sliding_window_pattern", [True]),
    ("gemma3_text", "hidden_act", "silu"),
    ("gemma3_text", "rope_local_base_freq", 0.0),
    ("gemma3_text", "text_config", 3),
    ("gemma3_text", "quantization_config", {"quant_method": "awq"}),
    ("glm4", "partial_rotary_factor", 1.5),
    ("glm4", "partial_rotary_factor", 0.01),
    ("glm4", "mlp_bias", True),
    ("glm4", "n_routed_experts", 64),
    ("glm4", "sliding_window", 4096),
    ("glm4", "rope_scaling", [8, 12, 12]),
]


@pytest.mark.parametrize(("family", "field", "value"), REFUSED)
def test_refusals_name_field_and_value(family: str, field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read(family, **{field: value})
    assert field in refusal.value.cause
    assert repr(value)[:10] in refusal.value.cause


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("apply_residual_connection_post_layernorm", True),
        ("n_head", 3),
        ("n_inner", 128),
        ("num_key_value_heads", 2),
        ("layer_norm_epsilon", 0.0),
        ("alibi", True),
        ("rope_theta", 1e4),
    ],
)
def test_refusals_of_bloom(field: str, value: Any) -> None:
    standard = {"n_head": "num_attention_heads", "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps"}
    with pytest.raises(UnsupportedModelError, match=f"{standard.get(field, field)}={value!r}"):
        read_bloom(**{field: value})


def test_shards_of_bloom_matter_only_where_they_are_summed_one_by_one() -> None:
    assert read_bloom(pretraining_tp=4, slow_but_exact=False).notes == ()
    assert read_bloom(pretraining_tp=1, slow_but_exact=True).notes == ()
    with pytest.raises(UnsupportedModelError, match="slow_but_exact"):
        read_bloom(pretraining_tp=4, slow_but_exact=True)


def build(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Module:
    return build_module(Source(config, {name: ShapeSource(name, shape) for name, shape in shapes.items()}))


def gemma3_shapes(prefix: str) -> dict[str, tuple[int, ...]]:
    """A language model of one layer whose tensors are named `prefix`.layers.0.*, beside an image's."""
    layer = {
        "self_attn.q_proj": (64, 32),
        "self_attn.k_proj": (16, 32),
        "self_attn.v_proj": (16, 32),
        "self_attn.o_proj": (32, 64),
        "self_attn.q_norm": (16,),
        "self_attn.k_norm": (16,),
        "mlp.gate_proj": (48, 32),
        "mlp.up_proj": (48, 32),
        "mlp.down_proj": (32, 48),
        "input_layernorm": (32,),
        "post_attention_layernorm": (32,),
        "pre_feedforward_layernorm": (32,),
        "post_feedforward_layernorm": (32,),
    }
    shapes = {f"{prefix}.layers.0.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {f"{prefix}.embed_tokens.weight": (128, 32), f"{prefix}.norm.weight": (32,)}


@pytest.mark.parametrize(
    ("prefix", "images"),
    [
        ("model", ""),
        ("language_model.model", "vision_tower.vision_model.embeddings.weight"),
        ("model.language_model", "model.vision_tower.vision_model.embeddings.weight"),
        ("model.language_model", "model.multi_modal_projector.mm_soft_emb_norm.weight"),
    ],
)
def test_the_language_model_of_a_model_with_images(prefix: str, images: str) -> None:
    config = gemma3(32, 48, 1, head_dim=16, vocab_size=128)
    shapes = gemma3_shapes(prefix) | ({images: (5, 5)} if images else {})
    assert build(config, shapes).storages.keys() == gemma3_shapes("model").keys()
    with pytest.raises(UnsupportedModelError, match=r"audio_tower\.weight"):
        build(config, {**shapes, "audio_tower.weight": (5, 5)})
    with pytest.raises(CheckpointError, match="same one"):
        build(config, gemma3_shapes("model") | gemma3_shapes("model.language_model"))


def test_configs_with_images() -> None:
    """Where the part for text says nothing, transformers' defaults hold."""
    for published in IMAGES.values():
        config = published.config
        ours = arch_for(config).config(config)
        theirs = Gemma3TextConfig(**config["text_config"])
        assert (
            config_notes(config)
            == ours.notes
            == ("Of this model only the part for text is used: images are not supported yet.",)
        )
        assert (ours.frame.vocab, ours.frame.hidden) == (theirs.vocab_size, theirs.hidden_size)
        assert (ours.attention.heads, ours.attention.kv_heads) == (
            theirs.num_attention_heads,
            theirs.num_key_value_heads,
        )
        assert ours.attention.scale == pytest.approx(theirs.query_pre_attn_scalar**-0.5, rel=1e-15)


def test_bloom_with_and_without_a_prefix() -> None:
    layer = {"input_layernorm": (64,), "post_attention_layernorm": (64,)}
    wide = {"self_attention.query_key_value": 192, "mlp.dense_h_to_4h": 256}
    shapes: dict[str, tuple[int, ...]] = {"word_embeddings.weight": (128, 64)}
    for name in ("word_embeddings_layernorm", "ln_f", *(f"h.{n}.{part}" for n in range(2) for part in layer)):
        shapes |= {f"{name}.weight": (64,), f"{name}.bias": (64,)}
    for number in range(2):
        for name, rows in {**wide, "self_attention.dense": 64, "mlp.dense_4h_to_h": 64}.items():
            cols = 256 if name == "mlp.dense_4h_to_h" else 64
            shapes |= {f"h.{number}.{name}.weight": (rows, cols), f"h.{number}.{name}.bias": (rows,)}
    short = build(BLOOM, shapes)
    long = build(BLOOM, {f"transformer.{name}": shape for name, shape in shapes.items()})
    assert short.storages.keys() == long.storages.keys()
    with pytest.raises(CheckpointError, match="192 rows|191 rows"):
        build(BLOOM, {**shapes, "h.1.self_attention.query_key_value.weight": (191, 64)})
    with pytest.raises(UnsupportedModelError, match=r"h\.0\.self_attention\.rotary\.weight"):
        build(BLOOM, {**shapes, "h.0.self_attention.rotary.weight": (5, 5)})


def test_which_glm_norms_what_its_blocks_give() -> None:
    norms = {name: MORE[name].config for name in MORE if name.startswith("glm")}
    behind = {name: arch_for(config).config(config).frame.norms.after_mlp for name, config in norms.items()}
    assert behind == {
        "glm 4 9b 0414": "post_mlp_layernorm",
        "glm 4 32b 0414": "post_mlp_layernorm",
        "glm 4 9b chat": None,
    }
    for name, after in (("glm4", "post_mlp_layernorm"), ("glm", None), ("chatglm", None)):
        assert read(name).frame.norms.after_mlp == after
