"""SamplingParams: types and ranges, refused as RequestErrors that name the parameter."""

import numpy as np
import pytest

from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams

REFUSED: list[tuple[str, object]] = [
    ("n", 0),
    ("n", 1025),
    ("n", None),
    ("temperature", "hot"),
    ("temperature", None),
    ("temperature", True),
    ("temperature", float("inf")),
    ("temperature", 10**400),
    ("temperature", -0.1),
    ("top_p", 0),
    ("top_p", np.float32("nan")),
    ("top_k", 1.5),
    ("top_k", None),
    ("top_k", -2),
    ("min_p", 2),
    ("seed", -1),
    ("seed", 1.0),
    ("max_tokens", -1),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("min_tokens", None),
    ("presence_penalty", 2.1),
    ("presence_penalty", None),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", float("nan")),
    ("repetition_penalty", 0),
    ("repetition_penalty", 9e-5),
    ("repetition_penalty", 10001),
    ("repetition_penalty", "1"),
    ("logit_bias", [1]),
    ("logit_bias", 5),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1.0": 1}),
    ("logit_bias", {"\u0661": 1}),
    ("logit_bias", {"": 1}),
    ("logit_bias", {-1: 1}),
    ("logit_bias", {True: 1}),
    ("logit_bias", {1: 100.5}),
    ("logit_bias", {1: "1"}),
    ("logit_bias", {1: None}),
    ("logit_bias", {1: float("nan")}),
    ("logit_bias", {1: float("-inf")}),
    ("logit_bias", {"9" * 5000: 1}),
    ("logit_bias", {"5": 1, "05": 2}),
    ("logit_bias", {5: 1, "5": 1}),
    ("allowed_token_ids", []),
    ("allowed_token_ids", 5),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", ["1"]),
    *((name, ["x"] * 257) for name in ("stop", "bad_words")),
    *((name, texts) for name in ("stop", "bad_words") for texts in ("x" * 16385, ["x" * 100] * 164)),
    ("bad_words", 5),
    ("bad_words", [""]),
    ("bad_words", [5]),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", True),
    ("max_tokens", "5"),
    ("logprobs", 21),
    ("logprobs", False),
    ("stop", 5),
    ("stop", 0),
    ("stop", ""),
    ("stop", b"end"),
    ("stop", [5]),
    ("stop", {"a": 1}),
    ("stop_token_ids", 5),
    ("stop_token_ids", "5"),
    ("stop_token_ids", [1.0]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("skip_special_tokens", "no"),
    ("ignore_eos", "x"),
    ("ignore_eos", None),
    ("detokenize", 1),
    ("include_stop_str_in_output", ""),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_impossible_values_name_the_parameter(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name}") as refusal:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert refusal.value.param == name


def test_stop_needs_text() -> None:
    with pytest.raises(RequestError, match="stop needs detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_numbers_of_other_libraries_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(4),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        stop_token_ids=np.array([3, 5]),  # type: ignore[arg-type]
    )
    assert params == SamplingParams(temperature=0.5, top_k=4, seed=2**64 - 1, stop_token_ids=[3, 5])
    kinds = (type(params.temperature), type(params.top_k), type(params.seed), type(params.stop_ids[0]))
    assert kinds == (float, int, int, int)


def test_lists_become_tuples() -> None:
    params = SamplingParams(stop="end", stop_token_ids=iter([1, 2]))  # type: ignore[arg-type]
    assert params.stop == params.stop_strings == ("end",)
    assert params.stop_ids == (1, 2)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop == () == SamplingParams().stop_token_ids


def test_biases_are_numbers_by_token() -> None:
    given = {"7": 1, 8: np.float32(-100), np.int64(9): 0.5}
    assert SamplingParams(logit_bias=given).logit_bias == {7: 1.0, 8: -100.0, 9: 0.5}  # type: ignore[arg-type]
    assert SamplingParams().logit_bias == {}
    with pytest.raises(RequestError, match=r"logit_bias\[7\]=101 is out of range. It must be between -100 and 100"):
        SamplingParams(logit_bias={7: 101})


def test_the_ends_of_ranges() -> None:
    SamplingParams(n=1024, min_tokens=16, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1e-4)
    SamplingParams(max_tokens=0, prompt_logprobs=20, repetition_penalty=1e4, logit_bias={0: -100})
    SamplingParams(max_tokens=None, min_tokens=10**9)


def test_banned_words_and_allowed_ids() -> None:
    params = SamplingParams(bad_words="one", allowed_token_ids=np.array([4, 2]))  # type: ignore[arg-type]
    assert (params.bad_words, params.allowed_token_ids) == (("one",), (4, 2))
    assert SamplingParams().allowed_token_ids is None
