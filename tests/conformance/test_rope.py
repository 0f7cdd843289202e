"""Every rotary scaling against transformers' function of the same name."""

from typing import Any

import numpy as np
import pytest
from registry_entries import entries
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pelton.layers import ROPES
from pelton.layers.rope import RopeParameters

# Options to try each kind with; a new kind adds its own.
OPTIONS: dict[str, list[dict[str, float]]] = {
    "default": [{}],
    "linear": [{"factor": 2.5}, {"factor": 8.0}],
    "llama3": [
        {
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
        for factor, original in [(8.0, 8192), (32.0, 8192), (4.0, 64)]
    ],
}


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1e6])
@pytest.mark.parametrize("dim", [16, 64, 80, 128])
@pytest.mark.parametrize("kind", entries("rope"))
def test_frequencies_are_those_of_transformers(kind: str, dim: int, theta: float) -> None:
    for options in OPTIONS[kind]:
        config = LlamaConfig(
            hidden_size=dim,
            num_attention_heads=1,
            max_position_embeddings=131072,
            rope_parameters={"rope_type": kind, "rope_theta": theta, **options},
        )
        make: Any = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
        theirs, factor = make(config)
        rotation = ROPES.get(kind)().rotation(RopeParameters(kind, theta, dim, options))
        # Theirs are made in fp32, which loses a digit where frequencies are mixed of two.
        np.testing.assert_allclose(rotation.inverse_frequencies, theirs.numpy(), rtol=2e-6 if options else 1e-6)
        assert rotation.factor == factor


@pytest.mark.parametrize("kind", entries("rope"))
def test_options_are_all_that_is_needed(kind: str) -> None:
    for options in OPTIONS[kind]:
        assert set(ROPES.get(kind)().options) == set(options)
        for missing in options:
            left = {name: value for name, value in options.items() if name != missing}
            with pytest.raises(KeyError, match=missing):
                ROPES.get(kind)().rotation(RopeParameters(kind, 1e4, 16, left))
