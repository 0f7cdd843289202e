"""Overrides of a config: merged as they are meant in either spelling of positions, refused where they do nothing."""

import json
from typing import Any

import pytest
from tests.models.test_config import PLAIN

from pelton.core.config import resolve
from pelton.core.errors import CheckpointError, PeltonError, SettingError, UnsupportedModelError
from pelton.models import arch_for
from pelton.models.archs.llama import Llama
from pelton.models.overrides import overridden, override_config, override_notes

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
        ({"rope_scaling": {"type": "yarn", "factor": -1}}, "hf_overrides has rope_scaling.factor=-1, which"),
        ({"rope_scaling": {"type": "yarm", "factor": 4.0}}, "hf_overrides has rope_scaling.rope_type='yarm'"),
        ({"rope_scaling": {"factor": 4.0}}, "hf_overrides has no rope_scaling.rope_type."),
        ({"rope_scaling": {"rope_type": "ntk"}}, "hf_overrides has no rope_scaling.factor."),
        ({"rope_scaling": {"rope_type": "yarn"}}, "With hf_overrides, the model's config has no factor for its"),
        ({"rope_scale": 4.0}, "hf_overrides has rope_scale=4.0, which is unknown"),
        ({"sliding_window": 512}, "hf_overrides has sliding_window=512"),
        ({"num_hidden_layers": "two"}, "hf_overrides has num_hidden_layers='two'"),
        ({"architectures": ["NoSuchModel"]}, "With hf_overrides, the model is of the family 'NoSuchModel'"),
    ],
)
def test_what_the_family_refuses_it_refuses_here_too(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as refusal:
        override_config(PLAIN, json.dumps(overrides))
    assert refusal.value.cause.startswith(said)


def test_a_refusal_that_is_the_files_own_is_left_as_it_is() -> None:
    with pytest.raises(UnsupportedModelError, match="^The model's config has clip_qkv=8"):
        override_config({**PLAIN, "clip_qkv": 8}, '{"rope_theta": 7.0}')
    assert override_config({**PLAIN, "clip_qkv": 8}, '{"clip_qkv": null}') == {**PLAIN, "clip_qkv": None}


def test_a_refusal_of_another_field_says_that_there_are_overrides() -> None:
    config = {**PLAIN, "model_type": "mistral", "architectures": None, "layer_types": ["full_attention"] * 2}
    config["sliding_window"] = None
    with pytest.raises(SettingError, match="^With hf_overrides, the model's config has layer_types='full_attention'"):
        override_config(config, '{"sliding_window": 64}')


@pytest.mark.parametrize("error", [CheckpointError, UnsupportedModelError])
def test_errors_about_an_overridden_model_say_so(error: type[PeltonError]) -> None:
    for cause, told in (("The model is odd.", "With hf_overrides, the model is odd."), ("T.", "With hf_overrides: T.")):
        with pytest.raises(SettingError) as refusal, overridden('{"num_hidden_layers": 3}'):
            raise error(cause, "Mend it.")
        assert (refusal.value.cause, refusal.value.remedy) == (told, "Mend it.")
        with pytest.raises(error, match=f"^{cause} Mend it.$"), overridden("{}"):
            raise error(cause, "Mend it.")


# As transformers 5 saves a Qwen2: the list of layers' kinds, which its family goes by.
SAVED = {
    **PLAIN,
    "architectures": ["Qwen2ForCausalLM"],
    "layer_types": ["full_attention"] * 2,
    "max_window_layers": 28,
    "sliding_window": None,
    "use_sliding_window": False,
}
WINDOW = {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}


def test_what_another_field_decides_names_it() -> None:
    with pytest.raises(SettingError) as refusal:
        override_config(SAVED, json.dumps(WINDOW))
    told = "hf_overrides has sliding_window, which changes nothing that this model computes: layer_types decides."
    assert str(refusal.value) == f"{told} Change layer_types, or leave sliding_window out."
    with pytest.raises(SettingError, match="has rope_theta, .*: rope_scaling decides"):
        override_config(PLAIN, json.dumps({"rope_theta": 7.0, "rope_scaling": {**YARN, "rope_theta": 8.0}}))
    with pytest.raises(SettingError, match="has model_type, .*: architectures decides"):
        override_config(PLAIN, '{"model_type": "mistral"}')


def test_fields_that_only_matter_together_may_be_overridden_together() -> None:
    unlisted = {name: value for name, value in SAVED.items() if name != "layer_types"}
    for config, overrides in (
        (unlisted, WINDOW),
        (SAVED, {**WINDOW, "layer_types": None}),
        ({**SAVED, "max_window_layers": 1}, {**WINDOW, "layer_types": None}),  # as the file has it: no matter
    ):
        merged = override_config(config, json.dumps(overrides))
        assert arch_for(merged).config(merged).windows == (None, 64)  # type: ignore[attr-defined]
    for name in WINDOW:  # alone they do nothing, or cannot be
        with pytest.raises(SettingError):
            override_config(unlisted, json.dumps({name: WINDOW[name]}))
    listed = {"sliding_window": 64, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
    override_config(SAVED, json.dumps(listed))
    with pytest.raises(SettingError, match="has max_window_layers, .*: layer_types decides"):
        override_config(SAVED, json.dumps({**listed, "max_window_layers": 1}))


def test_what_the_file_says_already_may_be_said_again() -> None:
    for config in (NEW, OLD):
        assert changed(config, rope_theta=5e5, vocab_size=128).rope.theta == 5e5
    with pytest.raises(SettingError, match="has rms_norm_eps, which changes nothing that this model computes. Leave"):
        override_config(PLAIN, '{"rms_norm_eps": 1e-6}')  # what holds without it


@pytest.mark.parametrize(
    ("family", "field", "value"), [("gemma3", "sliding_window", 4096), ("glm4", "partial_rotary_factor", 0.5)]
)
def test_a_default_that_gguf_files_do_not_have_may_be_said(family: str, field: str, value: float) -> None:
    """Without it a GGUF has no window, or turns whole heads."""
    config = {**PLAIN, "architectures": None, "model_type": family}
    assert override_config(config, json.dumps({field: value}))[field] == value


GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "vision_config": {},
    "text_config": {"num_hidden_layers": 12, "rope_theta": 1e6, "sliding_window": 64},
}


def test_fields_of_a_part_are_held_to_the_same() -> None:
    assert override_config(GEMMA, '{"text_config": {"sliding_window": 32}}')["text_config"]["sliding_window"] == 32  # type: ignore[index]
    for overrides, said in (
        (
            {"text_config": {"sliding_window": 32, "torch_dtype": "x"}},
            "has text_config.torch_dtype, which changes noth",
        ),
        ({"vision_config": {"hidden_size": 5}}, "has vision_config.hidden_size, which changes nothing"),
        ({"rope_theta": 1e5}, "has rope_theta, which changes nothing .*: text_config.rope_theta decides"),
        ({"text_config": {"sliding_window": 0}}, "^hf_overrides has sliding_window=0"),
    ):
        with pytest.raises(SettingError, match=said):
            override_config(GEMMA, json.dumps(overrides))


def test_scaling_in_a_part_is_switched_in_either_spelling() -> None:
    config = {**GEMMA, "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}}
    merged = override_config(config, json.dumps({"text_config": {"rope_scaling": YARN}}))
    rope = arch_for(merged).config(merged).rope  # type: ignore[attr-defined]
    assert (rope.kind, rope.theta) == ("yarn", 5e5)


def test_a_table_for_a_kind_of_layer_that_there_is_not() -> None:
    tables = {**NESTED["rope_parameters"], "bare_attention": {"rope_theta": 5.0}}
    config = {**GEMMA, "text_config": {"rope_parameters": NESTED["rope_parameters"]}}
    given = {"text_config": {"rope_parameters": {**tables, "full_attention": {"rope_theta": 7.0}}}}
    with pytest.raises(SettingError, match="has text_config.rope_parameters.bare_attention, which changes nothing"):
        override_config(config, json.dumps(given))
    del given["text_config"]["rope_parameters"]["bare_attention"]
    override_config(config, json.dumps(given))


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"yarn"', "{'factor': 4}", "[" * 50_000], ids=range(6))
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
