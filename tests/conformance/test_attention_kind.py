"""Every attention kind: one layer of it on every backend against rows computed one by one, chunked and decoded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from registry_entries import entries
from tests.program import expected
from tests.program.one_op import TOKENS, VOCAB, Numbers, result
from tests.program.sources import ArraySource, dense, drawn

from pelton.attention import ATTENTION
from pelton.attention.kind import AttentionShape
from pelton.layers.embedding import embed, head
from pelton.layers.norm import NormShape
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import rope_table, rotation_of
from pelton.program.builder import Builder
from pelton.program.module import Module

HIDDEN, DIM, SCALE = 48, 16, 0.5
SHAPES = {
    "multi_head": AttentionShape(HIDDEN, 3, 3, DIM, SCALE),
    "grouped": AttentionShape(HIDDEN, 4, 2, DIM, SCALE, biased=("q", "k", "v")),
    "multi_query": AttentionShape(HIDDEN, 4, 1, DIM, SCALE, biased=("o",)),
    "window": AttentionShape(HIDDEN, 4, 2, DIM, SCALE, window=20),
    "capped_normed_heads": AttentionShape(HIDDEN, 4, 2, DIM, SCALE, softcap=1.5, head_norm=NormShape(1e-3, plus=1.0)),
    "normed_rows": AttentionShape(HIDDEN, 4, 2, DIM, SCALE, row_norm=NormShape(1e-3), interleaved=True),
    "slopes": AttentionShape(HIDDEN, 4, 2, DIM, SCALE, slopes=(0.5, 0.25, 0.0625, 0.004)),
}
UNTURNED = ("slopes",)
ROTATION = rotation_of(RopeParameters("default", 10000.0, DIM, 512))


@dataclass(frozen=True)
class Layer:
    """A module whose logits are the layer's output, and the numbers it was made of."""

    module: Module
    weights: dict[str, Numbers]
    x: Numbers


def layer(kind: str, shape: AttentionShape) -> Layer:
    """Embedding, one layer of attention, identity head."""
    q, kv = shape.heads * DIM, shape.kv_heads * DIM
    sizes = {"q": (q, HIDDEN), "k": (kv, HIDDEN), "v": (kv, HIDDEN), "o": (HIDDEN, q)}
    tensors: dict[str, ArraySource] = {
        "embedding": dense("embedding", drawn("embedding", (VOCAB, HIDDEN)).numbers * 5),
        "identity": dense("identity", np.eye(HIDDEN)),
    }
    for part, size in sizes.items():
        tensors[f"a.{part}_proj.weight"] = drawn(f"a.{part}_proj.weight", size, seed=ord(part))
    for part in "qk" if shape.head_norm or shape.row_norm else "":
        width = DIM if shape.head_norm else sizes[part][0]
        tensors[f"a.{part}_norm.weight"] = drawn(f"a.{part}_norm.weight", (width,), seed=ord(part))
    for part in shape.biased:
        tensors[f"a.{part}_proj.bias"] = drawn(f"a.{part}_proj.bias", (sizes[part][0],))
    builder = Builder(tensors)
    x = embed(builder, builder.input("ids"), "embedding", VOCAB, HIDDEN)
    positions = builder.input("positions")
    table = None if shape in map(SHAPES.get, UNTURNED) else rope_table(builder, positions, ROTATION)
    head(builder, ATTENTION.get(kind)().add(builder, x, table, "a", shape), "identity", HIDDEN, HIDDEN)
    builder.entry("target", ("ids", "positions"))
    numbers = {name: source.numbers.astype(np.float64) for name, source in tensors.items()}
    return Layer(builder.finish(vocab=HIDDEN, context=512), numbers, numbers["embedding"][TOKENS])


def full(made: Layer, shape: AttentionShape) -> Numbers:
    """What softmax attention over everything gives."""
    frequencies = np.array(ROTATION.inverse_frequencies)

    def project(part: str, x: Numbers) -> Numbers:
        bias = made.weights.get(f"a.{part}_proj.bias", np.zeros(1))
        return x @ made.weights[f"a.{part}_proj.weight"].T + bias

    def placed(part: str, heads: int) -> Numbers:
        x = project(part, made.x)
        norm, gain = shape.head_norm or shape.row_norm, made.weights.get(f"a.{part}_norm.weight")
        if norm is not None and gain is not None:
            x = expected.rms_norm_of_heads(x, gain + norm.plus, norm.eps, heads if shape.head_norm else 1)
        if shape in map(SHAPES.get, UNTURNED):
            return x
        return expected.rope(x, frequencies, heads, interleaved=shape.interleaved)

    q, k, v = placed("q", shape.heads), placed("k", shape.kv_heads), project("v", made.x)
    more = {"window": shape.window, "softcap": shape.softcap, "slopes": shape.slopes}
    return project("o", expected.attention(q, k, v, shape.kv_heads, SCALE, **more))  # type: ignore[arg-type]


# A new kind adds its oracle.
ORACLES: dict[str, Callable[[Layer, AttentionShape], Numbers]] = {"full": full}


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("kind", entries("attention_kind"))
@pytest.mark.parametrize("name", SHAPES)
def test_kind_is_its_oracle_in_any_chunks(kind: str, name: str, backend: str) -> None:
    made = layer(kind, SHAPES[name])
    wanted = ORACLES[kind](made, SHAPES[name])
    assert wanted.std() > 0.05
    for chunk in (len(TOKENS), 1, 31):
        assert np.abs(result(backend, made.module, chunk) - wanted).max() < 1e-5 * wanted.std(), chunk


@pytest.mark.parametrize("kind", entries("attention_kind"))
@pytest.mark.parametrize("name", SHAPES)
def test_cache_is_what_the_spec_says(kind: str, name: str) -> None:
    shape = SHAPES[name]
    spec = ATTENTION.get(kind)().kv_spec(shape)
    states = list(layer(kind, shape).module.states.values())
    assert [(state.spec, state.layers) for state in states] == [(spec, 1)]
