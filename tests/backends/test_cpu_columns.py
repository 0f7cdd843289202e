"""What attention tells beside its result: the logarithm of each softmax's sum, and how much weight each key has."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.backends.mini import Piece, compiled, inputs, mini_module, random_tokens, run, with_windows
from tests.backends.variants import variant
from tests.program.sources import drawn

from pelton.backends.backend import MAX_COLUMNS, ColumnSums, CompileOptions, Executable, Float32
from pelton.backends.cpu import _native
from pelton.backends.reference.backend import ReferenceBackend
from pelton.program.builder import Builder
from pelton.program.module import Module
from pelton.program.states import KVSpec

TABLE, LENGTH, KV_HEADS = range(1, 30), 600, 2
HEADS, DIM, VOCAB = 6, 16, 50


def reference(module: Module, *, exact: bool = True) -> Executable:
    executable = ReferenceBackend().compile(module, CompileOptions(700, 64, exact=exact))
    executable.allocate((100,) * len(module.states))
    return executable


def sums_of(
    executable: Executable, module: Module, wishes: list[tuple[int, int, int]], sizes: list[int] | None = None
) -> list[Float32]:
    """Column sums of (layer, first, rows), rows counting through a prompt that is run in pieces of these sizes."""
    sums = [np.zeros((KV_HEADS, LENGTH), np.float32) for _ in wishes]
    tokens, start = random_tokens(LENGTH), 0
    for size in sizes or [LENGTH]:
        columns = []
        for (layer, first, rows), into in zip(wishes, sums, strict=True):
            low, high = max(first, start), min(first + rows, start + size)
            if low < high:
                columns.append(ColumnSums(layer, low - start, high - low, into))
        step = inputs([Piece(tokens[start : start + size], start, [TABLE] * len(module.states))])
        executable.run(replace(step, columns=tuple(columns)))
        start += size
    return sums


WISHES = [(0, 568, 32), (1, 0, 600), (2, 599, 1), (1, 100, 130)]


@pytest.mark.parametrize("layer", ["full", "windows", "slopes"])
def test_column_sums_are_those_of_the_reference(layer: str) -> None:
    made: dict[str, Callable[[], Module]] = {
        "full": mini_module,
        "windows": lambda: with_windows(mini_module(), 30, 200),
        "slopes": lambda: variant("centred"),
    }
    module = made[layer]()
    ours = sums_of(compiled(module, exact=True), module, WISHES)
    theirs = sums_of(reference(module), module, WISHES)
    for (_, first, rows), mine, truth in zip(WISHES, ours, theirs, strict=True):
        np.testing.assert_allclose(mine, truth, atol=1e-4, rtol=1e-3)
        np.testing.assert_allclose(mine.sum(1), rows * HEADS // KV_HEADS, rtol=1e-4)
        assert not mine[:, first + rows :].any()


def test_pieces_threads_and_instruction_sets_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    module = with_windows(mini_module(), 30, 200)
    truth = sums_of(compiled(module), module, WISHES)
    cut = [100, 1, 1, 62, 64, 300, 65, 7]
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        for threads, sizes in ((1, None), (3, cut), (2, [300, 300])):
            found = sums_of(compiled(module, threads=threads), module, WISHES, sizes)
            assert all(mine.tobytes() == other.tobytes() for mine, other in zip(found, truth, strict=True)), (
                isa,
                sizes,
            )


def test_column_sums_of_one_among_others_change_nothing_else() -> None:
    module = mini_module()
    executable = compiled(module)
    pieces = [Piece(random_tokens(n, seed=n), 0, range(30 + 10 * i, 40 + 10 * i)) for i, n in enumerate((40, 90, 3))]
    plain = run(executable, pieces)
    sums = [np.zeros((KV_HEADS, 100), np.float32) for _ in range(MAX_COLUMNS)]
    wishes = tuple(ColumnSums(i % 3, 40 + 10 * i, 10, into) for i, into in enumerate(sums))
    out = executable.run(replace(inputs(pieces), columns=wishes))
    assert out.logits is not None and plain.logits is not None
    assert out.logits.tobytes() == plain.logits.tobytes()
    assert all(into.any() and not into[:, 90:].any() for into in sums)


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        ((3, 0, 1), "not there"),
        ((-1, 0, 1), "not there"),
        ((0, 0, 0), "rows of one sequence"),
        ((0, -1, 1), "rows of one sequence"),
        ((0, 9, 2), "rows of one sequence"),
        ((0, 20, 1), "rows of one sequence"),
    ],
)
def test_wishes_that_lead_nowhere_are_refused(wish: tuple[int, int, int], what: str) -> None:
    executable = compiled(mini_module())
    step = inputs([Piece([1] * 10, 0, [1]), Piece([2] * 10, 0, [2])])
    with pytest.raises(ValueError, match=what):
        executable.run(replace(step, columns=(ColumnSums(*wish, np.zeros((KV_HEADS, 64), np.float32)),)))


def test_more_refusals() -> None:
    executable = compiled(mini_module())
    step = inputs([Piece([1] * 10, 0, [1])])
    room, narrow = np.zeros((KV_HEADS, 64), np.float32), np.zeros((KV_HEADS, 9), np.float32)
    for columns, what in (
        ((ColumnSums(0, 0, 10, narrow),), "room for all keys"),
        ((ColumnSums(0, 0, 1, room),) * 9, "at most 8"),
    ):
        with pytest.raises(ValueError, match=what):
            executable.run(replace(step, columns=columns))
    tree = np.array([-1, 0, 0, *range(2, 9)], np.int32)
    with pytest.raises(ValueError, match="rows of a tree"):
        executable.run(replace(step, parents=tree, columns=(ColumnSums(0, 0, 10, room),)))


# ---- LSE -------------------------------------------------------------------------------------------------------------


def with_lse() -> Module:
    """One attention whose LSEs are what the logits are made of."""
    width = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
    shapes = {"table": (VOCAB, 64), "out": (VOCAB, HEADS), **{name: (rows, 64) for name, rows in width.items()}}
    builder = Builder({name: drawn(name, shape, "F32", seed=i) for i, (name, shape) in enumerate(shapes.items())})
    ids = builder.input("ids")
    builder.input("positions")
    builder.op("embed", (ids,), ("x",), weights=(builder.gather("table", VOCAB, 64),))
    for name, rows in width.items():
        builder.op("linear", ("x",), (name,), weights=(builder.matrix(name, rows, 64),))
    state, layer = builder.state(KVSpec(KV_HEADS, DIM, DIM))
    builder.op("kv_write", ("k", "v"), state=state, attrs={"layer": layer})
    attrs = {"layer": layer, "heads": HEADS, "scale": 0.25, "softcap": 0.0, "lse": True}
    builder.op("attend", ("q",), ("mixed", "lse"), state=state, attrs=attrs)
    builder.op("head", ("lse",), weights=(builder.matrix("out", VOCAB, HEADS),), attrs={"eps": 0.0, "softcap": 0.0})
    builder.entry("target", ("ids", "positions"))
    return builder.finish(vocab=VOCAB, context=1024)


def test_lse_is_a_second_output() -> None:
    module = with_lse()
    tokens = random_tokens(80)
    step = [Piece([token % VOCAB for token in tokens], 0, TABLE), Piece([1, 2, 3], 0, range(40, 42))]
    theirs = run(reference(module), step).logits
    assert theirs is not None
    found = set()
    for threads in (1, 2):
        out = run(compiled(module, exact=True, threads=threads), step)
        assert out.logits is not None
        np.testing.assert_allclose(out.logits, theirs, atol=1e-4, rtol=1e-4)
        found.add(out.logits.tobytes())
    assert len(found) == 1 and np.abs(theirs[0] - theirs[1]).max() > 0.01
