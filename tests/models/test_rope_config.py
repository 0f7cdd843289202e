"""Rotary parameters in all spellings of configs, GGUF's tensors of divisors, and refusals that name the field."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.program.sources import dense

from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import rotation_of
from pelton.models.config import ConfigReader
from pelton.models.rope_config import has_original, with_divisors

DIM, CONTEXT = 8, 4096
ORIGINAL = "original_max_position_embeddings"
YARN = {"factor": 4.0, ORIGINAL: 1024}
SHORT, LONG = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]
LISTS = {"short_factor": SHORT, "long_factor": LONG}


def read(config: Mapping[str, Any], **changes: Any) -> RopeParameters:
    return ConfigReader(config).rope(DIM, CONTEXT, 10000.0, **changes)


SPELLINGS: list[dict[str, Any]] = [
    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}},
    {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **YARN}},
    {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}},
    {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "rope_type": "yarn", "finetuned": True, **YARN}},
    {"rope_theta": 5e5, ORIGINAL: 1024, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    {"rope_theta": 5e5, ORIGINAL: 1024, "rope_scaling": {"type": "yarn", **YARN, ORIGINAL: 7}},
    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN, "mscale": None, "partial_rotary_factor": 1.0}},
]


@pytest.mark.parametrize("config", SPELLINGS)
def test_spellings_say_the_same(config: dict[str, Any]) -> None:
    assert read(config) == RopeParameters("yarn", 5e5, DIM, CONTEXT, {"factor": 4.0, ORIGINAL: 1024.0})


def test_options_are_read_as_they_are_meant() -> None:
    given = {"attention_factor": 1, "beta_fast": 16, "beta_slow": 2, "mscale": 0, "mscale_all_dim": 0.5}
    rope = read({"rope_parameters": {"rope_type": "yarn", **YARN, **given, "truncate": False}})
    assert rope.options == {"factor": 4.0, ORIGINAL: 1024.0, **given, "truncate": False}
    assert read({"rope_scaling": {"type": "yarn", "factor": 4.0}}).options == {"factor": 4.0, ORIGINAL: CONTEXT}
    assert read({"rope_scaling": {"type": "ntk", "factor": 2}}).options == {"factor": 2.0}
    assert read({"rope_scaling": {"type": "dynamic", "factor": 2.0}}).options == {"factor": 2.0}


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope_has_a_list_for_each_length(name: str) -> None:
    rope = read({ORIGINAL: 1024, "rope_scaling": {"type": name, **LISTS, "short_mscale": 1.1, "long_mscale": 1.2}})
    assert rope.kind == "longrope"
    lists = {key: tuple(value) for key, value in LISTS.items()}
    assert rope.options == {**lists, ORIGINAL: 1024.0, "short_mscale": 1.1, "long_mscale": 1.2}


NESTED = {
    "rope_theta": 7e3,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "chunked_attention": {"rope_type": "default"},
        "bare_attention": None,
    },
}


def test_each_layer_type_has_its_own_table() -> None:
    wanted = {
        "full_attention": ("linear", 1e6),
        "sliding_attention": ("default", 1e4),
        "chunked_attention": ("default", 7e3),
        "bare_attention": ("default", 7e3),
        "other_attention": ("default", 7e3),
    }
    for name, (kind, theta) in wanted.items():
        rope = read(NESTED, layer_type=name)
        assert (rope.kind, rope.theta) == (kind, theta)
    with pytest.raises(UnsupportedModelError, match="full_attention"):
        read(NESTED)


def test_one_table_serves_all_layer_types() -> None:
    config = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5}}
    assert read(config, layer_type="full_attention") == read(config)


def test_layers_with_rules_of_their_own() -> None:
    """Sliding layers of Gemma 3 in the old spelling: another base, and no scaling; in the new one, their own table."""
    own = {"layer_type": "sliding_attention", "theta_field": "rope_local_base_freq", "scaled": False}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert read(old, layer_type="full_attention") == RopeParameters("linear", 1e6, DIM, CONTEXT, {"factor": 8.0})
    assert read(old, **own) == RopeParameters("default", 2e4, DIM, CONTEXT)
    assert read({"rope_theta": 1e6}, **own) == RopeParameters("default", 1e4, DIM, CONTEXT)
    assert read(NESTED, **own) == RopeParameters("default", 1e4, DIM, CONTEXT)


@pytest.mark.parametrize(
    "config",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
    ],
)
def test_a_part_of_the_head_in_all_places(config: dict[str, Any]) -> None:
    reader = ConfigReader(config)
    dim = reader.rotated(16)
    assert dim == 8
    assert reader.rope(dim, CONTEXT, 1e4).dim == 8
    assert reader.notes() == ()


def test_a_part_of_the_head_that_the_family_knows() -> None:
    assert ConfigReader({}).rotated(16) == 16
    assert ConfigReader({}).rotated(16, 0.25) == 4
    assert ConfigReader({"partial_rotary_factor": 0.5}).rotated(16, 0.25) == 8


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor=0"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor='half'"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor=0.2"),  # three numbers are no pairs
        ({"rope_parameters": {"partial_rotary_factor": True}}, "rope_parameters.partial_rotary_factor=True"),
        (
            {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "rope_parameters.partial_rotary_factor=0.25",
        ),
    ],
)
def test_parts_that_cannot_be(config: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        ConfigReader(config).rotated(16)
    assert field in refusal.value.cause


def test_a_family_without_parts_refuses_them() -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters.partial_rotary_factor=0.5"):
        read({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("rope_scaling.rope_type=", {"type": "mrope", "mrope_section": [1, 1, 2]}),
    ("rope_scaling.rope_type=", {"type": ["yarn"]}),
    ("rope_scaling.type=", {"rope_type": "longrope", "type": "yarn", **LISTS}),
    ("rope_scaling.mrope_section=", {"type": "default", "mrope_section": [1, 1, 2]}),
    ("has no rope_scaling.factor.", {"type": "ntk"}),
    ("has no rope_scaling.factor.", {"type": "dynamic", "factor": None}),
    ("has no rope_scaling.low_freq_factor.", {"type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}),
    ("has no rope_scaling.rope_type.", {"factor": 2.0}),
    ("has no rope_scaling.rope_type.", {**LISTS}),
    ("rope_scaling.factor=1000000000000.0", {"type": "dynamic", "factor": 1e12}),
    ("rope_scaling.factor=0.0001", {"type": "linear", "factor": 0.0001}),
    ("rope_scaling.factor='4'", {"type": "yarn", "factor": "4"}),
    ("rope_scaling.alpha=", {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}),
    ("rope_scaling.attention_factor=1.2", {"type": "dynamic", "factor": 2.0, "attention_factor": 1.2}),
    ("rope_scaling.attention_factor=0", {"type": "yarn", **YARN, "attention_factor": 0}),
    ("rope_scaling.beta_fast=-1", {"type": "yarn", **YARN, "beta_fast": -1}),
    ("rope_scaling.mscale=-1", {"type": "yarn", **YARN, "mscale": -1}),
    ("rope_scaling.mscale=False", {"type": "yarn", **YARN, "mscale": False}),
    ("rope_scaling.truncate=1", {"type": "yarn", **YARN, "truncate": 1}),
    ("rope_scaling.short_factor=", {"type": "yarn", **YARN, "short_factor": SHORT}),
    (f"rope_scaling.{ORIGINAL}=1", {"type": "yarn", "factor": 4.0, ORIGINAL: 1}),
    ("rope_scaling.yarn_ext_factor=0.5", {"type": "yarn", **YARN, "yarn_ext_factor": 0.5}),
    ("rope_scaling.yarn_attn_factor=1.2", {"type": "yarn", **YARN, "yarn_attn_factor": 1.2}),
    ("rope_scaling.yarn_log_multiplier=0.1", {"type": "yarn", **YARN, "yarn_log_multiplier": 0.1}),
    ("rope_scaling.short_factor=", {"type": "longrope", **LISTS, "short_factor": SHORT[:3]}),
    ("rope_scaling.long_factor=", {"type": "longrope", **LISTS, "long_factor": 2.0}),
    ("rope_scaling.long_factor[1]=0", {"type": "longrope", **LISTS, "long_factor": [1.0, 0, 1.0, 1.0]}),
    ("rope_scaling.long_factor[3]='1'", {"type": "longrope", **LISTS, "long_factor": [1.0, 1.0, 1.0, "1"]}),
]


@pytest.mark.parametrize(("said", "scaling"), REFUSED)
def test_refusals_name_the_field(said: str, scaling: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        read({"rope_scaling": scaling})
    assert said in refusal.value.cause


def test_a_missing_kind_lists_those_there_are() -> None:
    with pytest.raises(UnsupportedModelError, match="one of: default, dynamic, linear, llama3, longrope, ntk, yarn"):
        read({"rope_scaling": {"factor": 2.0, ORIGINAL: 1024}})
    for plain in ({"factor": None, ORIGINAL: 1024}, {"mscale": 1.0, "rope_theta": 5.0}):
        assert read({"rope_parameters": plain}).kind == "default"


KINDS: dict[str, dict[str, Any]] = {
    "linear": {},
    "ntk": {},
    "dynamic": {},
    "yarn": {ORIGINAL: 1024},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {**LISTS, ORIGINAL: 1024},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_factor_makes_texts_shorter(kind: str) -> None:
    assert read({"rope_scaling": {"type": kind, **KINDS[kind], "factor": 1}}).options["factor"] == 1.0
    with pytest.raises(
        UnsupportedModelError, match=r"rope_scaling.factor=0\.9.* a number from 1 \(scaling makes longer"
    ):
        read({"rope_scaling": {"type": kind, **KINDS[kind], "factor": 0.9}})


@pytest.mark.parametrize("original", [{}, {ORIGINAL: CONTEXT}, {ORIGINAL: 2 * CONTEXT}])
def test_a_yarn_that_would_scale_nothing_is_refused(original: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="no factor .*max_position_embeddings=4096 is no longer than orig"):
        read({"rope_scaling": {"type": "yarn", **original}})
    assert read({"rope_scaling": {"type": "yarn", ORIGINAL: CONTEXT // 2}}).context == CONTEXT


def test_a_nested_refusal_names_the_layer_type() -> None:
    config = {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": -2.0}}}
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters.full_attention.factor=-2"):
        read(config, layer_type="full_attention")
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters.full_attention=3"):
        read({"rope_parameters": {"full_attention": 3}}, layer_type="full_attention")


def test_neutral_values_of_other_kinds_pass() -> None:
    for extra in ({"mscale": 1.0}, {"attention_factor": 1}, {"yarn_log_multiplier": 0.0, "yarn_ext_factor": 1.0}):
        assert read({"rope_scaling": {"type": "linear", "factor": 2.0, **extra}}).options == {"factor": 2.0}


def test_where_the_length_before_scaling_may_stand() -> None:
    assert has_original({ORIGINAL: 64})
    assert has_original({"rope_scaling": {"type": "yarn", **YARN}})
    assert has_original({"rope_parameters": {"rope_type": "yarn", **YARN}})
    assert not has_original({"rope_scaling": None, "rope_parameters": {"rope_type": "default"}})


def test_divisors_of_a_gguf_become_the_lists() -> None:
    """Phi-3's files: the factor stands in the metadata, the lists are tensors."""
    config = {"rope_scaling": {"rope_type": "longrope", ORIGINAL: 1024, "attn_factor": 1.19}}
    tensors = {
        name: dense(name, np.array(values))
        for name, values in [("rope_factors_long.weight", LONG), ("rope_factors_short.weight", SHORT)]
    }
    bare = read(config)
    with pytest.raises(UnsupportedModelError, match="long_factor"):
        rotation_of(bare)
    full = with_divisors(bare, tensors)
    listed = read({"rope_scaling": {"type": "longrope", **LISTS, ORIGINAL: 1024, "attention_factor": 1.19}})
    for length in (1024, 1025):
        assert rotation_of(full, length).factor == 1.19
        assert rotation_of(full, length).inverse_frequencies == pytest.approx(
            rotation_of(listed, length).inverse_frequencies, rel=1e-7
        )
    assert with_divisors(bare, {}) is bare
    with pytest.raises(CheckpointError, match="needs both"):
        with_divisors(bare, dict(list(tensors.items())[:1]))
    with pytest.raises(CheckpointError, match="'default'"):
        with_divisors(read({}), tensors)
