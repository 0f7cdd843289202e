"""Rotary parameters of every kind, and what transformers makes of them: as it is, and with its arithmetic in fp64."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pelton.layers.rope import Option, RopeParameters

CONTEXT = 4096
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class Case:
    """One config: `options` by their names; a text of `length` tokens (None: the kind does not ask)."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    length: int | None = None
    theta: float = 10000.0
    dim: int = 64
    context: int = CONTEXT

    @property
    def parameters(self) -> RopeParameters:
        options: dict[str, Option] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()
        }
        return RopeParameters(self.kind, self.theta, self.dim, self.context, options)

    @property
    def frozen(self) -> int:
        """The length that ours are made for."""
        return self.length or self.context

    def theirs(self, partial: float = 1.0) -> "Theirs":
        """transformers' names for it: it has no `ntk`, but a dynamic one of factor 1 at `factor` times the context."""
        options = {"factor": 1.0} if self.kind == "ntk" else dict(self.options)
        kind = "dynamic" if self.kind == "ntk" else self.kind
        rope = {"rope_type": kind, "rope_theta": self.theta, **options}
        if partial != 1.0:
            rope["partial_rotary_factor"] = partial
        config = LlamaConfig(
            hidden_size=round(self.dim / partial),
            num_attention_heads=1,
            max_position_embeddings=self.context,
            rope_parameters=rope,
        )
        length = round(self.context * self.options["factor"]) if self.kind == "ntk" else self.length
        return Theirs(config, kind, length)


@dataclass(frozen=True)
class Theirs:
    """transformers' side of a case."""

    config: LlamaConfig
    kind: str
    length: int | None

    def frequencies(self) -> tuple[NDArray[np.float64], float]:
        """Inverse frequencies and the factor of cosines and sines."""
        make: Any = ROPE_INIT_FUNCTIONS.get(self.kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
        found, factor = make(self.config, seq_len=self.length)
        return found.double().numpy(), float(factor)

    def table(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cosines and sines [positions, dim / 2] of its class's forward pass in fp32, for positions of the text."""
        embedding = LlamaRotaryEmbedding(self.config)
        # Kinds that look at a text's length see the largest position: it makes the length that is meant.
        given = positions if self.length is None else np.append(positions, self.length - 1)
        found = embedding(torch.zeros(1), torch.tensor(given)[None])
        cos, sin = (part[0, : len(positions), : part.shape[-1] // 2].double().numpy() for part in found)
        return cos, sin


@contextmanager
def in_fp64() -> Iterator[None]:
    """transformers' formulas, which ask for fp32, in fp64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def divisors(dim: int, least: float, most: float) -> list[float]:
    """Divisors of longrope as models have them: growing, no power of two."""
    return np.geomspace(least, most, dim // 2).round(4).tolist()


def cases(kind: str, dim: int = 64) -> list[Case]:
    """Configs of a kind, each option flipped; a new kind adds its own."""
    lists = {"short_factor": divisors(dim, 1.0, 2.5), "long_factor": divisors(dim, 1.05, 61.7)}
    yarn = {"factor": 4.0, ORIGINAL: 2048}
    found: dict[str, list[tuple[dict[str, Any], int | None]]] = {
        "default": [({}, None)],
        "linear": [({"factor": 2.5}, None), ({"factor": 8.0}, None)],
        "ntk": [({"factor": 2.0}, None), ({"factor": 3.5}, None)],
        "dynamic": [
            *(({"factor": 2.0}, length) for length in (1, CONTEXT, CONTEXT + 1, 8192, 200_001)),
            ({"factor": 4.5}, 5000),
            ({"factor": 1.0}, 5000),
        ],
        "yarn": [
            (yarn, None),
            ({**yarn, "factor": 40.0, ORIGINAL: 4096}, None),
            ({**yarn, "factor": 1.0}, None),
            ({**yarn, "attention_factor": 1.0}, None),
            ({**yarn, "attention_factor": 1.37}, None),
            ({**yarn, "beta_fast": 8.0, "beta_slow": 2.0}, None),
            ({**yarn, "beta_slow": 32.0}, None),  # a ramp without width
            ({**yarn, "truncate": False}, None),
            ({**yarn, "mscale": 0.707, "mscale_all_dim": 1.0}, None),
            ({**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}, None),
            ({**yarn, "mscale": 0.707}, None),
            ({**yarn, "mscale": 0.0, "mscale_all_dim": 1.0}, None),
            ({**yarn, "mscale": 0.5, "mscale_all_dim": 1.0, "attention_factor": 1.1}, None),
            ({**yarn, "factor": None}, None),
        ],
        "llama3": [
            ({"factor": factor, **LLAMA3, ORIGINAL: original}, None)
            for factor, original in [(8.0, 8192), (32.0, 8192), (4.0, 64)]
        ],
        "longrope": [
            *(({**lists, ORIGINAL: 1024}, length) for length in (1, 1024, 1025, CONTEXT, 200_001)),
            ({**lists, ORIGINAL: 1024, "factor": 9.0}, 3000),
            ({**lists, ORIGINAL: 1024, "factor": 0.5}, 3000),
            ({**lists, ORIGINAL: 1024, "attention_factor": 1.0}, 3000),
            ({**lists, ORIGINAL: 1024, "attention_factor": 1.19}, 300),
            ({**lists, ORIGINAL: CONTEXT}, CONTEXT),
        ],
    }
    return [Case(kind, options, length, dim=dim) for options, length in found[kind]]
