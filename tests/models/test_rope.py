"""Rotary frequencies against golden numbers, and the row order of files that keep pairs side by side."""

import numpy as np
import pytest

from pelton.core.errors import UnsupportedModelError
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import half_split_rows, rotation_of

LLAMA31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def frequencies(kind: str, theta: float, dim: int, **options: float) -> tuple[float, ...]:
    return rotation_of(RopeParameters(kind, theta, dim, options)).inverse_frequencies


def test_golden_numbers_of_llama_31() -> None:
    got = frequencies("llama3", 5e5, 128, **LLAMA31)
    golden = {28: 3.211446e-3, 29: 2.166571e-3, 30: 1.371894e-3, 33: 3.126938e-4, 35: 9.556212e-5, 63: 3.068926e-7}
    for place, value in golden.items():
        assert got[place] == pytest.approx(value, rel=5e-7)
    plain = frequencies("default", 5e5, 128)
    assert got[:29] == plain[:29]
    assert got[35] == pytest.approx(plain[35] / 8, rel=1e-15)


def test_frequencies_are_exact_to_the_last_bit() -> None:
    """Powers whose value is known: theta^(-2j/d) with theta = 10^4, d = 8 is 1, 0.1, 0.01, 0.001."""
    assert frequencies("default", 10000.0, 8) == (1.0, 0.1, 0.01, 0.001)
    assert frequencies("linear", 10000.0, 8, factor=4.0) == (0.25, 0.025, 0.0025, 0.00025)


def test_llama3_refuses_a_ramp_without_width() -> None:
    with pytest.raises(UnsupportedModelError, match="low_freq_factor=4"):
        frequencies("llama3", 5e5, 128, **{**LLAMA31, "low_freq_factor": 4.0})


def test_half_split_rows_undo_the_interleaving_of_gguf() -> None:
    """llama.cpp's converter views a head's rows as [2, d / 2] and stores them as [d / 2, 2]."""
    heads, dim = 3, 8
    original = np.arange(heads * dim)
    stored = original.reshape(heads, 2, dim // 2).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(stored[list(half_split_rows(heads, dim))], original)
