"""Which value holds, and where it came from: request over flag over generation_config over the general default."""

from dataclasses import fields

import pytest

from pelton.core.errors import CheckpointError, RequestError, SettingError
from pelton.core.params import SamplingParams
from pelton.sampling.effective import Defaults, defaults_of, effective, overrides_of

NONE = Defaults({}, {})
MODEL = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "min_new_tokens": 2}


def test_nothing_said_is_the_general_default() -> None:
    found = effective({}, NONE)
    assert found.params == SamplingParams()
    assert found.origins == {field.name: "default" for field in fields(SamplingParams)}


def test_each_source_wins_over_those_before_it() -> None:
    defaults = defaults_of(MODEL, {"top_p": 0.5, "top_k": 9, "max_new_tokens": 40}, use_model=True)
    found = effective({"top_k": 3, "seed": 5}, defaults)
    assert found.params == SamplingParams(
        temperature=0.6, top_p=0.5, repetition_penalty=1.1, top_k=3, max_tokens=40, min_tokens=2, seed=5
    )
    said = {name: origin for name, origin in found.origins.items() if origin != "default"}
    assert said == {
        "temperature": "generation_config",
        "repetition_penalty": "generation_config",
        "min_tokens": "generation_config",
        "top_p": "flag",
        "max_tokens": "flag",
        "top_k": "request",
        "seed": "request",
    }
    assert found.origins.keys() == {field.name for field in fields(SamplingParams)}


def test_the_model_can_be_left_out() -> None:
    assert defaults_of(MODEL, None, use_model=False) == NONE
    assert defaults_of({"temperature": -1}, {"top_k": 2}, use_model=False) == Defaults({"top_k": 2}, {"top_k": "flag"})


def test_a_doors_own_defaults_are_below_all_that_was_said() -> None:
    general = {"max_tokens": None, "temperature": 0.3}
    defaults = defaults_of({"temperature": 0.6}, None, use_model=True)
    found = effective({}, defaults, general)
    assert (found.params.max_tokens, found.params.temperature) == (None, 0.6)
    assert (found.origins["max_tokens"], found.origins["temperature"]) == ("default", "generation_config")
    assert effective({"max_tokens": 4}, defaults, general).params.max_tokens == 4


def test_greedy_by_the_model_and_its_undoing() -> None:
    model = {"do_sample": False, "temperature": 0.9, "top_k": 7}
    assert defaults_of(model, None, True).values == {"temperature": 0.0}
    assert defaults_of(model, {"top_p": 0.5}, True).values == {"temperature": 0.0, "top_p": 0.5}
    assert defaults_of(model, {"temperature": 0.4}, True).values == {"temperature": 0.4, "top_k": 7}
    drawing = defaults_of(model, {"do_sample": True}, True)
    assert drawing == Defaults(
        {"temperature": 0.9, "top_k": 7}, {"temperature": "generation_config", "top_k": "generation_config"}
    )
    greedy = defaults_of({"temperature": 0.9}, {"do_sample": False}, True)
    assert greedy == Defaults({"temperature": 0.0}, {"temperature": "flag"})


def test_a_least_length_nobody_asked_for_gives_way() -> None:
    defaults = defaults_of({"min_new_tokens": 20}, None, True)
    assert effective({}, defaults).params.min_tokens == 16
    assert effective({"max_tokens": 3}, defaults).params.min_tokens == 3
    assert effective({"max_tokens": None}, defaults).params.min_tokens == 20
    with pytest.raises(RequestError, match=r"^min_tokens=20"):
        effective({"max_tokens": 3, "min_tokens": 20}, defaults)
    with pytest.raises(RequestError, match=r"^max_tokens=-1"):
        effective({"max_tokens": -1}, defaults)


def test_bad_values_are_told_by_whose_they_are() -> None:
    with pytest.raises(RequestError, match=r"^top_p=2") as refusal:
        effective({"top_p": 2}, NONE)
    assert refusal.value.param == "top_p"
    with pytest.raises(RequestError, match=r"^topp is not a parameter. Did you mean top_p\?") as refusal:
        effective({"topp": 0.5}, NONE)
    assert refusal.value.param == "topp"
    with pytest.raises(RequestError, match=r"^typical_p=0.5 is not supported"):
        effective({"typical_p": 0.5}, NONE)
    assert effective({"typical_p": 1.0}, NONE) == effective({}, NONE)
    with pytest.raises(CheckpointError, match=r"generation_config.json: temperature=-1"):
        defaults_of({"temperature": -1}, None, True)
    with pytest.raises(SettingError, match=r"override_generation_config: top_k='x'"):
        defaults_of({}, {"top_k": "x"}, True)


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ({"temprature": 1}, "Did you mean temperature?"),
        ({"max_tokenz": 1}, "Did you mean max_tokens?"),
        ({"typical_p": 0.5}, "typical_p=0.5, which is not supported"),
        ({"zzzz": 1}, "It knows do_sample, "),
    ],
)
def test_overrides_that_there_are_not(overrides: dict[str, object], hint: str) -> None:
    with pytest.raises(SettingError) as refusal:
        defaults_of({}, overrides, True)
    assert hint in str(refusal.value)


def test_overrides_in_both_vocabularies() -> None:
    found = defaults_of({}, {"max_tokens": 5, "min_tokens": 2, "presence_penalty": 1, "typical_p": 1}, True)
    assert found.values == {"max_tokens": 5, "min_tokens": 2, "presence_penalty": 1}


def test_overrides_are_a_table_of_json() -> None:
    assert overrides_of(None) is None
    assert overrides_of('{"top_p": 0.5}') == {"top_p": 0.5}
    for bad in ("{top_p: 1}", "[1]", "3", "", "[" * 50_000):
        with pytest.raises(SettingError, match="override_generation_config"):
            overrides_of(bad)
