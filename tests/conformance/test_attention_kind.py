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
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import rope_table, rotation_of
from pelton.program.builder import Builder
from pelton.program.module import Module

HIDDEN, DIM, SCALE = 48, 16, 0.5
SHAPES = {
    "multi_head": AttentionShape(HIDDEN, 3, 3, DIM, SCALE),
    "grouped": AttentionShape(HIDDEN, 4, 2, DIM, SCALE, biased=("q", "k", "v")),
    "multi_query": AttentionShape(HIDDEN, 4, 1, DIM, SCALE, biased=("o",)),
}
ROTATION = rotation_of(RopeParameters("default", 10000.0, DIM))


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
    for part in shape.biased:
        tensors[f"a.{part}_proj.bias"] = drawn(f"a.{part}_proj.bias", (sizes[part][0],))
    builder = Builder(tensors)
    x = embed(builder, builder.input("ids"), "embedding", VOCAB, HIDDEN)
    table = rope_table(builder, builder.input("positions"), ROTATION)
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

    q = expected.rope(project("q", made.x), frequencies, shape.heads)
    k = expected.rope(project("k", made.x), frequencies, shape.kv_heads)
    return project("o", expected.attention(q, k, project("v", made.x), shape.kv_heads, SCALE))


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
