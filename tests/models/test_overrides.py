"""Overrides of a config: merged as they are meant in either spelling of positions, refused where they do nothing."""

import json
from typing import Any

import pytest
from tests.models.test_config import PLAIN

from pelton.core.config import resolve
from pelton.core.errors import SettingError, UnsupportedModelError
from pelton.models.archs.llama import Llama
from pelton.models.overrides import override_config, override_notes

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
ORIGINAL = "original_max_position_embeddings"
NEW = {**PLAIN, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
OLD = {**PLAIN, "rope_theta": 5e5, "rope_scaling": None}
NESTED = {
    **PLAIN,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


def changed(config: dict[str, Any], **overrides: Any) -> Any:
    """What the family reads of the config under these overrides."""
    return Llama().config(override_config(config, json.dumps(overrides)))


@pytest.mark.parametrize("config", [NEW, OLD])
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_scaling_is_switched_in_either_spelling_and_keeps_the_base(config: dict[str, Any], spelling: str) -> None:
    read = changed(config, **{spelling: YARN})
    assert (read.rope.kind, read.rope.theta, read.rope.options["factor"]) == ("yarn", 5e5, 4.0)
    assert read.context == 8192


@pytest.mark.parametrize("config", [NEW, OLD])
def test_the_base_is_changed_wherever_it_stands(config: dict[str, Any]) -> None:
    assert changed(config, rope_theta=1e6).rope.theta == 1e6
    both = changed(config, rope_theta=1e6, rope_scaling=YARN).rope
    assert (both.kind, both.theta) == ("yarn", 1e6)
    inside = changed(config, rope_parameters={**YARN, "rope_theta": 2e6}).rope
    assert (inside.kind, inside.theta) == ("yarn", 2e6)


def test_scaling_is_taken_off() -> None:
    scaled = {**PLAIN, "rope_theta": 5e5, "rope_scaling": YARN}
    assert changed(scaled, rope_scaling=None).rope.kind == "default"
    new = {**PLAIN, "rope_parameters": {**YARN, "rope_theta": 5e5}}
    for spelling in ("rope_scaling", "rope_parameters"):
        rope = changed(new, **{spelling: {}}).rope
        assert (rope.kind, rope.theta) == ("default", 5e5)


def test_a_table_replaces_the_whole_one() -> None:
    scaled = {**PLAIN, "rope_theta": 5e5, "rope_scaling": {**YARN, "attention_factor": 1.5}}
    assert changed(scaled, rope_scaling={**YARN, "factor": 2.0}).rope.options == {"factor": 2.0, ORIGINAL: 2048.0}


def test_the_original_length_of_an_override_holds() -> None:
    outside = {**PLAIN, ORIGINAL: 512}
    assert changed(outside, rope_scaling=YARN).rope.options[ORIGINAL] == 2048.0
    assert changed(outside, rope_scaling={"type": "yarn", "factor": 4.0}).rope.options[ORIGINAL] == 512.0
    inside = {**PLAIN, "rope_scaling": YARN}
    assert changed(inside, **{ORIGINAL: 1024}).rope.options[ORIGINAL] == 1024.0


def test_other_fields_are_set() -> None:
    read = changed(PLAIN, max_position_embeddings=123, rms_norm_eps=0.25, hidden_act="gelu_pytorch_tanh")
    assert (read.context, read.frame.norm.eps) == (123, 0.25)
    assert override_config(PLAIN, None) == PLAIN
    assert override_config(PLAIN, "{}") == PLAIN


def test_the_file_is_left_as_it_is() -> None:
    kept = json.dumps(NEW)
    changed(NEW, rope_scaling=YARN, rope_theta=7.0)
    assert json.dumps(NEW) == kept


def test_configs_of_parts_are_merged_and_other_tables_replaced() -> None:
    config = {**PLAIN, "text_config": {"a": 1, "b": {"c": 1, "d": 2}}}
    with pytest.raises(SettingError, match="text_config"):  # no family reads it, so it may not be overridden
        override_config(config, '{"text_config": {"b": {"c": 3}}}')


def test_layers_with_tables_of_their_own_are_named() -> None:
    for overrides in ({"rope_theta": 1e5}, {"rope_scaling": YARN}, {"rope_parameters": YARN}):
        with pytest.raises(SettingError, match="full_attention, sliding_attention"):
            override_config(NESTED, json.dumps(overrides))


@pytest.mark.parametrize(
    "name", ["torch_dtype", "eos_token_id", "num_hidden_layer", "max_model_len", "initializer_range"]
)
def test_what_changes_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"hf_overrides has {name}, which changes nothing"):
        override_config(PLAIN, json.dumps({name: 7}))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": -1}}, "rope_scaling.factor=-1"),
        ({"rope_scaling": {"type": "yarm", "factor": 4.0}}, "rope_scaling.rope_type='yarm'"),
        ({"rope_scale": 4.0}, "rope_scale=4.0"),
        ({"sliding_window": 512}, "sliding_window=512"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers='two'"),
        ({"architectures": ["NoSuchModel"]}, "NoSuchModel"),
    ],
)
def test_what_the_family_refuses_it_refuses_here_too(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        override_config(PLAIN, json.dumps(overrides))
    assert said in refusal.value.cause


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"yarn"', "{'factor': 4}"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="hf_overrides"):
        override_config(PLAIN, text)


def test_the_setting_is_json_or_a_table() -> None:
    overrides = {"rope_scaling": {"type": "ntk", "factor": 2.0}}
    for given in (overrides, json.dumps(overrides)):
        assert resolve("m", {"hf_overrides": given}).model.hf_overrides == json.dumps(overrides)
    for wrong in ({"a": {1, 2}}, [1], 3):
        with pytest.raises(SettingError, match="hf_overrides"):
            resolve("m", {"hf_overrides": wrong})


def test_they_are_told() -> None:
    assert override_notes(None) == override_notes("{}") == ()
    assert override_notes('{"rope_theta": 1e6, "rope_scaling": {"type": "ntk", "factor": 2}}') == (
        'Config overrides: rope_theta=1000000.0, rope_scaling={"type": "ntk", "factor": 2}.',
    )
