"""Records: what takes effect is what the request asked for, in range and in fp32; off is off."""

import numpy as np
import pytest

from pelton.backends.backend import ONLY_ALLOWED, SAMPLING
from pelton.core.params import MAX_SEED, SamplingParams
from pelton.sampling.encode import encode


def test_a_record_holds_the_request() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        seed=MAX_SEED,
        logprobs=4,
        allowed_token_ids=[3],
        repetition_penalty=1.5,
        frequency_penalty=-0.25,
        presence_penalty=2,
    )
    record = encode(params, 9, child=2)
    assert record.dtype == SAMPLING
    assert record.item() == (MAX_SEED, 0.5, 0.25, 0.125, 7, 9, 2, 4, ONLY_ALLOWED, 1.5, -0.25, 2.0, -1)


def test_off_is_neutral() -> None:
    record = encode(SamplingParams(seed=1, top_k=-1), 0)
    assert record.item() == (1, 1.0, 1.0, 0.0, 0, 0, 0, -1, 0, 1.0, 0.0, 0.0, -1)


def test_a_record_is_as_long_as_the_native_one() -> None:
    # uint64, three floats, top_k, place, child, logprobs, flags, three penalties, target: no padding in C++ either.
    assert SAMPLING.itemsize == 56


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9, 9.999999999e-6])
def test_greedy_is_zero(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1)
    assert params.greedy
    assert encode(params, 0)["temperature"] == 0


def test_the_smallest_temperature_that_draws_is_not_greedy() -> None:
    params = SamplingParams(temperature=1e-5, seed=1)
    assert not params.greedy
    assert encode(params, 0)["temperature"] >= np.float32(1e-5)


def test_values_beyond_fp32_are_held_at_its_ends() -> None:
    record = encode(SamplingParams(temperature=1e300, top_p=1e-300, top_k=10**12, min_p=1e-300, seed=1), 0)
    assert record["temperature"] == np.finfo(np.float32).max
    assert record["top_p"] > 0
    assert record["top_k"] == 2**31 - 1
    assert record["min_p"] == 0


def test_a_missing_seed_is_refused() -> None:
    with pytest.raises(AssertionError, match="seed"):
        encode(SamplingParams(), 0)
