"""generation_config: what takes effect, what is told, what is silent."""

import pytest

from pelton.sampling.recommended import recommendation_notes, recommended


def test_what_is_recommended_takes_effect() -> None:
    assert recommended({}) == {}
    assert recommended({"temperature": None, "top_p": 0.9}) == {"top_p": 0.9}
    drawing = {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1}
    said = {"do_sample": True, "max_new_tokens": 9, "min_new_tokens": 2, **drawing}
    assert recommended(said) == {"max_tokens": 9, "min_tokens": 2, **drawing}
    assert recommendation_notes(said) == ()


def test_no_sampling_is_greedy() -> None:
    said = {"do_sample": False, "temperature": 0.9, "top_p": 0.6, "repetition_penalty": 1.1}
    assert recommended(said) == {"temperature": 0, "repetition_penalty": 1.1}


def test_names_that_are_only_ours_are_not_obeyed() -> None:
    said = {"detokenize": "no", "stop": ["x"], "ignore_eos": True, "max_tokens": 1, "n": 3, "seed": 5, "logprobs": 2}
    assert recommended(said) == {}
    assert len(recommendation_notes(said)) == len(said)


IGNORED: list[tuple[str, object]] = [
    ("no_repeat_ngram_size", 3),
    ("stop_strings", ["\n\n"]),
    ("bad_words_ids", [[5]]),
    ("typical_p", 0.9),
    ("penalty_alpha", 0.6),
    ("num_beams", 4),
    ("suppress_tokens", [1]),
    ("forced_eos_token_id", 2),
    ("guidance_scale", 1.5),
    ("something_new", "x"),
]


@pytest.mark.parametrize(("field", "value"), IGNORED)
def test_what_is_not_done_is_told(field: str, value: object) -> None:
    (note,) = recommendation_notes({"temperature": 0.5, field: value, "eos_token_id": 2})
    assert f"{field}={value!r}" in note and "ignored" in note


def test_what_changes_nothing_is_silent() -> None:
    neutral = {
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "typical_p": 1.0,
        "num_beams": 1,
        "penalty_alpha": 0,
        "min_length": 0,
        "suppress_tokens": [],
        "stop_strings": None,
        "token_healing": False,
        "guidance_scale": 1,
    }
    of_llama = {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}
    more = {"transformers_version": "4.45.0", "do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096}
    assert recommendation_notes({**neutral, **of_llama, **more}) == ()
