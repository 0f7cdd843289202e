"""SamplingParams: types and ranges, refused as RequestErrors that name the parameter."""

import numpy as np
import pytest

from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams

REFUSED: list[tuple[str, object]] = [
    ("n", 2),
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
    ("max_tokens", 0),
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
