"""Traces: equal numbers exactly where an op gave a token the same bits."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.mini import LAYERS, Piece, bits, compiled, inputs, mini_module, random_tokens
from tests.program.sources import ArraySource

from pelton.backends.backend import Executable
from pelton.backends.cpu import _native
from pelton.program.module import Module

LENGTH = 90
TOKENS = random_tokens(LENGTH)
Trace = NDArray[np.uint64]


def traced(executable: Executable, pieces: Sequence[Piece]) -> Trace:
    """[ops, tokens]; the last token of each piece has logits."""
    step = inputs(pieces)
    out, plain = executable.run(replace(step, trace=True)), executable.run(step)
    assert out.trace is not None and plain.trace is None
    assert all(bits(out, row) == bits(plain, row) for row in range(len(pieces)))
    return out.trace


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_alone_in_chunks_and_among_others(fused: bool, exact: bool) -> None:
    executable = compiled(mini_module(fused=fused), exact=exact)
    alone = traced(executable, [Piece(TOKENS, 0, [1, 2, 3])])
    assert alone.shape == (len(executable.labels()), LENGTH)
    assert (alone[:-1] != 0).all() and alone[-1, -1] != 0 and not alone[-1, :-1].any()
    for size in (1, 7, 64):
        steps = [Piece(TOKENS[at : at + size], at, [9, 8, 7]) for at in range(0, LENGTH, size)]
        chunked = np.concatenate([traced(executable, [step]) for step in steps], axis=1)
        np.testing.assert_array_equal(chunked[:-1], alone[:-1])
        assert chunked[-1, -1] == alone[-1, -1] and np.count_nonzero(chunked[-1]) == len(steps)
    others = [Piece(random_tokens(n, seed=n), 0, range(20 + 3 * n, 23 + 3 * n)) for n in (5, 33)]
    together = traced(executable, [others[0], Piece(TOKENS, 0, [11, 12, 13]), others[1]])
    np.testing.assert_array_equal(together[:, 5 : 5 + LENGTH], alone)


@pytest.mark.parametrize("fused", [True, False])
def test_every_instruction_set_has_the_same_trace(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        for threads in (1, 3):
            executable = compiled(mini_module(fused=fused, layers=2), threads=threads)
            found.add(traced(executable, [Piece(TOKENS, 0, [1, 2, 3])]).tobytes())
    assert len(found) == 1


def test_tokens_and_ops_are_told_apart() -> None:
    trace = traced(compiled(mini_module()), [Piece(TOKENS, 0, [1, 2, 3])])[:-1]
    for place, line in enumerate(trace):  # embedding, q, k and v of layer 0: equal for equal tokens
        assert len(set(line.tolist())) == (len(set(TOKENS)) if place in (1, 2) else LENGTH)
    assert len(set(trace[:, 40].tolist())) == len(trace)


def with_one_bit_changed(module: Module, vector: str) -> Module:
    """The lowest bit of the vector's number 17 is the other one."""
    name = module.weights[vector].storage
    storage = module.storages[name]
    source = storage.source
    assert isinstance(source, ArraySource)
    raw = bytearray(source.read())
    raw[17 * 4] ^= 1
    return replace(
        module, storages={**module.storages, name: replace(storage, source=replace(source, data=bytes(raw)))}
    )


@pytest.mark.parametrize("layer", [0, LAYERS - 1])
def test_the_first_op_that_differs_is_the_one_whose_weights_do(layer: int) -> None:
    module = mini_module("F32")
    changed = with_one_bit_changed(module, f"model.layers.{layer}.post_attention_layernorm.weight:vector")
    executables = [compiled(one, exact=True) for one in (module, changed)]
    first, second = (traced(executable, [Piece(TOKENS, 0, [1, 2, 3])]) for executable in executables)
    differs = (first != second).any(axis=1)
    place = int(np.argmax(differs))
    assert executables[0].labels()[place] == f"layer {layer} linear (mlp.gated)"
    assert differs[place:].sum() > 1


def test_a_cached_number_that_differs_shows_where_it_is_stored() -> None:
    """The hash of rope_kv covers K and V as they stand in the pool."""
    module = mini_module("F32")
    gain = "model.layers.1.input_layernorm.weight:vector"
    first, second = (compiled(one, exact=True) for one in (module, with_one_bit_changed(module, gain)))
    differs = (traced(first, [Piece(TOKENS, 0, [1, 2, 3])]) != traced(second, [Piece(TOKENS, 0, [1, 2, 3])])).any(
        axis=1
    )
    named = [label for label, wrong in zip(first.labels(), differs, strict=True) if wrong]
    assert named[:2] == ["layer 1 linear (self_attn.q, self_attn.k, self_attn.v)", "layer 1 rope_kv"]
    assert not any("layer 0" in label for label in named)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("part", [0, 1])
def test_each_cached_number_counts(fused: bool, exact: bool, part: int) -> None:
    """Of two tokens that differ in nothing but one matrix row of K or V, the hash of the op that stores it differs."""
    module = mini_module("F32", fused=fused, layers=1)
    name = f"model.layers.0.self_attn.{'kv'[part]}_proj.weight:matrix"
    storage = module.storages[module.weights[name].storage]
    source = storage.source
    assert isinstance(source, ArraySource)
    numbers = np.frombuffer(source.read(), np.float32).reshape(storage.rows, storage.cols)
    stores = "layer 0 rope_kv" if fused else "layer 0 kv_write"
    place = compiled(module).labels().index(stores)
    before = traced(compiled(module, exact=exact), [Piece(TOKENS[:35], 0, [1, 2])])[place]
    for row in (0, 1, 15, 16, storage.rows - 1):  # both heads
        other = numbers.copy()
        other[row] *= 2
        storages = {**module.storages, storage.name: replace(storage, source=replace(source, data=other.tobytes()))}
        after = traced(compiled(replace(module, storages=storages), exact=exact), [Piece(TOKENS[:35], 0, [1, 2])])[
            place
        ]
        assert (after != before).all(), row


@pytest.mark.parametrize("fused", [True, False])
def test_labels(fused: bool) -> None:
    module = mini_module(fused=fused)
    labels = compiled(module).labels()
    ops = module.entries["target"].ops
    assert len(labels) == len(set(labels)) == len(ops)
    assert labels[:2] == ("rope_table", "embed") and labels[-1] == "head"
    assert all(op.kind in label for op, label in zip(ops, labels, strict=True))
    attends = [label for label in labels if "attend)" not in label and label.endswith("attend")]
    assert attends == [f"layer {layer} attend" for layer in range(LAYERS)]
    layers = [int(label.split()[1]) for label in labels if label.startswith("layer")]
    assert layers == sorted(layers) and len(layers) == len(labels) - (3 if fused else 4)
