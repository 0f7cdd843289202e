"""Each step's mathematics against the warper of transformers, ties at borders, and the order of the steps."""

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pelton.core.params import SamplingParams
from pelton.sampling import STEPS, ordered_steps
from pelton.sampling.step import Logits

WARPERS: dict[str, tuple[type[LogitsProcessor], tuple[float, ...]]] = {
    "temperature": (TemperatureLogitsWarper, (0.2, 0.7, 1.5, 30.0)),
    "min_p": (MinPLogitsWarper, (1e-4, 0.05, 0.3, 1.0)),
    "top_k": (TopKLogitsWarper, (1, 2, 40, 999, 5000)),
    "top_p": (TopPLogitsWarper, (0.01, 0.3, 0.9, 0.999)),
}
CASES = [(name, value) for name, (_, values) in WARPERS.items() for value in values]


def apply(name: str, value: float, logits: Logits) -> Logits:
    return STEPS.get(name)().apply(logits, SamplingParams(**{name: value}))


@pytest.mark.parametrize(("name", "value"), CASES)
@pytest.mark.parametrize("vocab", [1, 2, 17, 1000])
def test_the_same_as_transformers(name: str, value: float, vocab: int) -> None:
    warper = WARPERS[name][0](value)
    rng = np.random.default_rng(vocab)
    for spread in (0.1, 1.0, 4.0):
        logits = rng.normal(0, spread, vocab)
        expected = warper(None, torch.from_numpy(logits)[None])[0].numpy()
        np.testing.assert_allclose(apply(name, value, logits), expected, rtol=1e-15)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_the_precision_of_the_logits_is_kept(name: str, value: float) -> None:
    logits = np.random.default_rng(0).normal(0, 2, 300)
    single = apply(name, value, logits.astype(np.float32))
    double = apply(name, value, logits)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, rtol=1e-6)


def test_ties() -> None:
    logits = np.array([1, 0, 2, 1, 1, 0, 1], np.float32)
    assert np.isfinite(apply("top_k", 2, logits)).nonzero()[0].tolist() == [0, 2, 3, 4, 6]
    weights = np.exp(logits.astype(np.float64))
    third = (weights[2] + 1.5 * weights[0]) / weights.sum()
    assert np.isfinite(apply("top_p", third, logits)).nonzero()[0].tolist() == [0, 2, 3]
    assert np.isfinite(apply("min_p", 1.0, logits)).nonzero()[0].tolist() == [2]


def test_mass_that_meets_the_border_exactly_is_enough() -> None:
    assert np.isfinite(apply("top_p", 0.5, np.zeros(8, np.float32))).nonzero()[0].tolist() == [0, 1, 2, 3]


def test_an_enormous_temperature_evens_everything_out() -> None:
    logits = np.array([3, -np.inf, -5], np.float32)
    assert apply("temperature", 1e300, logits) == pytest.approx([0, -np.inf, 0], abs=1e-37)


def test_the_order() -> None:
    # top_p after the others sees a renormalised distribution, so the order is part of what a seed means.
    assert [type(step).__name__ for step in ordered_steps()] == ["Temperature", "MinP", "TopK", "TopP"]
