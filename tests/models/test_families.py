"""What families read of a config where it says little, and what they refuse. The mathematics is in tests/oracle."""

import math
from typing import Any

import pytest
from tests.models.published import LONG, PUBLISHED
from transformers import (
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from pelton.core.errors import UnsupportedModelError
from pelton.models import arch_for

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, type[PretrainedConfig]] = {
    "mistral": MistralConfig,
    "olmo2": Olmo2Config,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "smollm3": SmolLM3Config,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def read(family: str, **changes: Any) -> Any:
    config = {"model_type": family, **SIZES, **changes}
    return arch_for(config).config(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    ours, theirs = read(family), FAMILIES[family](**SIZES)
    assert ours.notes == ()
    assert ours.attention.head_dim == (getattr(theirs, "head_dim", None) or 16)
    assert ours.attention.scale == 1 / math.sqrt(ours.attention.head_dim)
    assert ours.frame.norm.eps == theirs.rms_norm_eps
    assert ours.frame.tied is theirs.tie_word_embeddings
    assert ours.context == theirs.max_position_embeddings
    assert ours.mlp.activation == theirs.hidden_act
    assert (ours.rope.kind, ours.rope.theta) == ("default", theirs.rope_parameters["rope_theta"])
    assert ours.rope.dim == ours.attention.head_dim
    kinds = getattr(theirs, "layer_types", None) or [SLIDING if theirs.to_dict().get("sliding_window") else FULL] * 9
    assert [window is not None for window in ours.windows or [None] * 9] == [kind == SLIDING for kind in kinds]
    turned = getattr(theirs, "no_rope_layers", [1] * 9)
    assert sorted(ours.unturned) == [layer for layer in range(9) if not turned[layer]]


WINDOWS: list[tuple[str, dict[str, Any], list[int | None]]] = [
    ("mistral", {}, [4096] * 9),
    ("mistral", {"sliding_window": None}, [None] * 9),
    ("mistral", {"sliding_window": 7}, [7] * 9),
    ("mistral", {"sliding_window": 7, "layer_types": [SLIDING] * 9}, [7] * 9),
    ("phi3", {}, [None] * 9),
    ("phi3", {"sliding_window": 2047}, [2047] * 9),
    ("qwen2", {"sliding_window": 7}, [None] * 9),
    ("qwen2", {"sliding_window": 7, "use_sliding_window": False, "max_window_layers": 0}, [None] * 9),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 5}, [None] * 5 + [4096] * 4),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}, [7] * 9),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 7}, [None] * 9),
    ("qwen2", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None] * 9),
    (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 7, "layer_types": [SLIDING, *[FULL] * 8]},
        [7] + [None] * 8,
    ),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 7}, [None, None, None, 7] * 2 + [None]),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 7, "no_rope_layers": [0] + [1] * 8}, [7] + [None] * 8),
    ("smollm3", {"sliding_window": 7, "layer_types": [FULL] * 9}, [None] * 9),
]


@pytest.mark.parametrize(("family", "changes", "expected"), WINDOWS)
def test_windows(family: str, changes: dict[str, Any], expected: list[int | None]) -> None:
    assert list(read(family, **changes).windows) == expected
    theirs = FAMILIES[family](**SIZES, **changes)
    kinds = getattr(theirs, "layer_types", None)
    assert kinds is None or [window is not None for window in expected] == [kind == SLIDING for kind in kinds]


def test_layers_without_positions() -> None:
    assert read("smollm3", no_rope_layer_interval=3).unturned == {2, 5, 8}
    assert read("smollm3", no_rope_layers=[0, *[1] * 8]).unturned == {0}
    assert read("smollm3", no_rope_layer_interval=100).unturned == frozenset()


REFUSED: list[tuple[str, str, Any]] = [
    ("mistral", "sliding_window", 0),
    ("mistral", "sliding_window", -1),
    ("mistral", "sliding_window", "4096"),
    ("mistral", "sliding_window", True),
    ("mistral", "layer_types", [SLIDING]),
    ("mistral", "layer_types", "sliding_attention"),
    ("mistral", "attention_bias", True),
    ("qwen2", "max_window_layers", -1),
    ("qwen2", "max_window_layers", 2.0),
    ("qwen2", "use_sliding_window", "no"),
    ("qwen2", "qkv_bias", True),
    ("qwen2", "dual_chunk_attention_config", {"chunk_size": 262144}),
    ("qwen3", "num_experts", 128),
    ("qwen3", "mlp_bias", True),
    ("phi3", "full_attn_mod", 2),
    ("phi3", "lm_head_bias", True),
    ("phi3", "partial_rotary_factor", 0.03),
    ("olmo2", "clip_qkv", 8.0),
    ("olmo2", "sliding_window", 4096),
    ("olmo2", "layer_types", [FULL, SLIDING]),
    ("smollm3", "no_rope_layers", [1, 0]),
    ("smollm3", "no_rope_layers", 4),
    ("smollm3", "no_rope_layer_interval", 0),
    ("llama", "no_rope_layers", [1, 0]),
    ("llama", "use_sliding_window", True),
    ("llama", "full_attn_mod", 2),
]


@pytest.mark.parametrize(("family", "field", "value"), REFUSED)
def test_refusals_name_field_and_value(family: str, field: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read(family, **{field: value})
    assert field in refusal.value.cause
    assert repr(value)[:10] in refusal.value.cause


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("family", ["mistral", "phi3", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3"])
def test_a_window_of_nothing_is_refused_by_name(family: str, size: int) -> None:
    """On or off: a kernel would take it for none."""
    for switch in (None, False, True) if family in ("qwen2", "qwen3", "smollm3") else (None,):
        with pytest.raises(UnsupportedModelError, match=rf"sliding_window={size}, .* number from 1 to"):
            read(family, sliding_window=size, use_sliding_window=switch)


@pytest.mark.parametrize(
    ("family", "kinds", "word"),
    [
        ("qwen2", [FULL, SLIDING] * 4 + [FULL], "'sliding_attention'"),
        ("smollm3", [SLIDING] * 9, "'sliding_attention'"),
        ("qwen3", ["chunked_attention"] + [FULL] * 8, "'chunked_attention'"),
        ("qwen3", [None] * 9, "None"),
        ("mistral", [SLIDING, FULL] * 4 + [SLIDING], "'full_attention'"),
        ("phi3", [SLIDING] * 9, "'sliding_attention'"),
    ],
)
def test_kinds_of_layers_that_cannot_be(family: str, kinds: list[Any], word: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read(family, layer_types=kinds)
    assert f"layer_types={word}" in refusal.value.cause


def test_first_releases_of_long_phi_3_are_the_same_model() -> None:
    config = PUBLISHED["phi 3 mini 128k"].config
    first = {**config, "rope_scaling": {**LONG, "type": "su"}}
    assert arch_for(first).config(first) == arch_for(config).config(config)


def test_partial_turns() -> None:
    assert read("phi3", partial_rotary_factor=0.75).rope.dim == 12
    assert read("phi3", rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}).rope.dim == 8
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor=0.5"):
        read("qwen2", partial_rotary_factor=0.5)
