"""Cost rules on cases worked out by hand: FLOPs (a multiply-add counts 2), bytes read and written."""

from dataclasses import replace

import pytest
from tests.program.sources import ShapeSource

from pelton.program import OPS
from pelton.program.builder import Builder
from pelton.program.module import Module
from pelton.program.op import Cost, Op
from pelton.program.ops.attend import BLOCK, ROWS, read_blocks, visible_blocks
from pelton.program.states import KVSpec, State
from pelton.program.values import StepShape, Value

T = 3
STEP = StepShape(((0, T),), 1)
SHAPES = {
    "table": ((100, 64), "Q8_0"),
    "w": ((96, 64), "BF16"),
    "up": ((96, 64), "Q4_1"),
    "gain": ((64,), "F32"),
    "bias": ((96,), "F32"),
}


@pytest.fixture(scope="module")
def module() -> Module:
    """Values ids, positions, x [T, 64], y and k [T, 96], cs [T, 16]; KV groups of 2 heads, 2 with a window, 4."""
    builder = Builder({name: ShapeSource(name, *spec) for name, spec in SHAPES.items()})
    builder.input("ids")
    builder.input("positions")
    builder.op("embed", ("ids",), ("x",), weights=(builder.gather("table", 100, 64),))
    builder.op("linear", ("x",), ("y",), weights=(builder.matrix("w", 96, 64),))
    builder.op("linear", ("x",), ("k",), weights=(builder.matrix("up", 96, 64),))
    builder.op("rope_table", ("positions",), ("cs",), attrs={"inverse_frequencies": tuple([1.0] * 8)})
    builder.vector("gain", 64)
    builder.vector("bias", 96)
    builder.matrix("table", 100, 64)
    builder.state(KVSpec(2, 16, 16))
    builder.state(KVSpec(2, 16, 16, window=40))
    builder.state(KVSpec(4, 16, 16))
    builder.entry("target", ("ids", "positions"))
    return builder.finish(vocab=100, context=512)


def cost(module: Module, op: Op, step: StepShape = STEP, element: int = 2) -> Cost:
    return OPS.get(op.kind)().cost(op, module.tables("target", exact=element == 4), step)


def test_embed_reads_its_rows_only(module: Module) -> None:
    got = cost(module, Op("embed", ("ids",), ("x",), ("table:gather",)))
    assert got == Cost(flops=T * 64, read=T * (2 * 34 + 4), written=T * 64 * 4)


def test_linear_counts_two_flops_per_weight_and_token(module: Module) -> None:
    got = cost(module, Op("linear", ("x",), ("y",), ("w:matrix",)))
    assert got == Cost(flops=2 * T * 64 * 96, read=T * 64 * 4 + 64 * 96 * 2, written=T * 96 * 4)
    codes = cost(module, Op("linear", ("x",), ("y",), ("up:matrix",)))
    assert codes.read == T * 64 * 4 + 96 * 2 * 20


def test_weights_are_read_once_for_all_tokens(module: Module) -> None:
    op = Op("linear", ("x",), ("y",), ("w:matrix",))
    few, many = (cost(module, op, StepShape(((0, n),), 1)).read for n in (1, 256))
    assert many - few == 255 * 64 * 4


def test_fused_linear_is_its_parts_without_the_way_through_memory(module: Module) -> None:
    """Norm, gate and up, activation in one op: the same FLOPs as the parts, no intermediate values moved."""
    attrs = {"gain": "gain:vector", "eps": 1e-5, "activation": "silu", "biases": ("bias:vector", "")}
    op = Op("linear", ("x",), ("y",), ("w:matrix", "up:matrix"), attrs=attrs)
    got = cost(module, op)
    assert got.flops == 2 * 2 * T * 64 * 96 + 4 * T * 64 + T * 96 + 21 * T * 96
    assert got.read == T * 64 * 4 + 96 * 64 * 2 + 96 * 40 + 64 * 4 + 96 * 4
    assert got.written == T * 96 * 4


def test_elementwise(module: Module) -> None:
    assert cost(module, Op("add", ("x", "x"), ("z",))) == Cost(T * 64, 2 * T * 256, T * 256)
    gated = cost(module, Op("gated", ("x", "x"), ("z",), attrs={"activation": "silu"}))
    assert gated == Cost(21 * T * 64, 2 * T * 256, T * 256)
    norm = cost(module, Op("rms_norm", ("x",), ("z",), ("gain:vector",)))
    assert norm == Cost(4 * T * 64, T * 256 + 256, T * 256)


def test_rope(module: Module) -> None:
    table = cost(module, Op("rope_table", ("positions",), ("cs",), attrs={"inverse_frequencies": tuple([1.0] * 8)}))
    assert table == Cost(60 * T * 8, T * 4, T * 64)
    # 4 heads of 16 numbers: 8 pairs, 6 FLOPs each.
    rope = cost(module, Op("rope", ("x", "cs"), ("z",), attrs={"heads": 4}))
    assert rope == Cost(T * 4 * 8 * 6, T * (256 + 64), T * 256)


def test_kv_write_follows_the_element_size(module: Module) -> None:
    op = Op("kv_write", ("x", "x"), state="kv2", attrs={"layer": 0})
    assert cost(module, op) == Cost(0, 2 * T * 256, T * 4 * 32 * 2)
    assert cost(module, op, element=4).written == T * 4 * 32 * 4


def _attend(module: Module, state: str, step: StepShape) -> Cost:
    return cost(module, Op("attend", ("x",), ("z",), state=state, attrs={"heads": 4, "layer": 0}), step)


PAIR = 4 * (2 * 32 + 20)  # FLOPs of one query token and one key: 4 heads, dims 16 + 16, softmax
BLOCK_BYTES = 32 * 2 * 32 * 2


def test_attend_reads_whole_blocks_of_the_context(module: Module) -> None:
    one = _attend(module, "kv0", StepShape(((40, 1),), 1))
    assert one == Cost(64 * PAIR, 256 + 2 * BLOCK_BYTES, 256)


def test_attend_of_a_chunk_is_triangular_in_blocks(module: Module) -> None:
    """64 tokens from index 32: half of them see 2 blocks, half 3; the 3 blocks are read once."""
    chunk = _attend(module, "kv0", StepShape(((32, 64),), 1))
    assert chunk == Cost(32 * (64 + 96) * PAIR, 64 * 256 + 3 * BLOCK_BYTES, 64 * 256)


def test_attend_with_a_window_stops_growing(module: Module) -> None:
    """At index 1000 a window of 40 reaches back to 961: blocks 30 and 31."""
    far = _attend(module, "kv1", StepShape(((1000, 1),), 1))
    assert far == Cost(64 * PAIR, 256 + 2 * BLOCK_BYTES, 256)


def test_sequences_add_up(module: Module) -> None:
    parts = [((7, 5),), ((100, 1),), ((31, 40),)]
    together = _attend(module, "kv0", StepShape(sum(parts, ()), 1))
    alone = sum((_attend(module, "kv0", StepShape(part, 1)) for part in parts), Cost())
    assert together == alone


@pytest.mark.parametrize(("rows", "passes"), [(1, 1), (32, 1), (33, 2), (64, 2)])
def test_head_reads_its_matrix_once_per_32_rows(module: Module, rows: int, passes: int) -> None:
    got = cost(module, Op("head", ("x",), weights=("table:matrix",)), StepShape(((0, 64),), rows))
    assert got.flops == rows * 100 * (2 * 64 + 20)
    assert got.read == passes * 100 * 68 + rows * 256 + rows * 400
    assert got.written == rows * 400


def test_step_shapes() -> None:
    step = StepShape(((0, 3), (10, 4)), 2)
    assert (step.tokens, step.size("T"), step.size("R"), step.size("S"), step.size(9)) == (7, 7, 2, 2, 9)
    assert StepShape.of(5, 100) == StepShape(((100, 5),), 1)
    assert State("kv0", KVSpec(2, 16, 8), 3).spec.token_bytes(2) == 96


LOWERED = {
    "gain": Op("linear", ("x",), ("y",), ("w:matrix",), attrs={"gain": "gain:vector", "eps": 1e-5}),
    "several": Op("linear", ("x",), ("y", "k"), ("w:matrix", "up:matrix"), attrs={"biases": ("bias:vector", "")}),
    "activation": Op("linear", ("x",), ("y",), ("w:matrix", "up:matrix"), attrs={"activation": "silu"}),
    "residual": Op("linear", ("x", "k"), ("y",), ("w:matrix",)),
    "all": Op(
        "linear", ("x", "k"), ("y",), ("w:matrix", "up:matrix"),
        attrs={"gain": "gain:vector", "eps": 1e-5, "activation": "silu", "biases": ("bias:vector", "")},
    ),
    "rope_kv": Op("rope_kv", ("x", "x", "x", "cs"), ("z",), state="kv2", attrs={"heads": 4, "kv_heads": 4, "layer": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOWERED)
def test_lowering_ends_in_primitives_with_the_same_outputs_and_flops(module: Module, name: str) -> None:
    op = LOWERED[name]
    parts = OPS.get(op.kind)().lower(op)
    assert parts is not None
    made = [output for part in parts for output in part.outputs]
    assert set(op.outputs) <= set(made)
    assert len(made) == len(set(made))
    tables, flops = module.tables("target"), 0
    values = {input_: tables.values[input_] for input_ in op.inputs}
    for part in parts:
        rule = OPS.get(part.kind)()
        assert rule.lower(part) is None, part
        tables = replace(tables, values=values)
        flops += rule.cost(part, tables, STEP).flops
        values |= {n: Value(n, s) for n, s in zip(part.outputs, rule.shapes(part, tables), strict=True)}
    assert flops == cost(module, op).flops
    assert all(output.startswith(op.outputs[-1]) for output in made if output not in op.outputs)


@pytest.mark.parametrize("window", [None, 1, 2, 31, 32, 33, 64, 70, 500])
def test_blocks_seen_and_read_are_what_counting_gives(window: int | None) -> None:
    """Closed forms, because a context may have millions of tokens."""

    def first(index: int) -> int:
        return 0 if window is None else max(0, index - window + 1)

    for start in (0, 1, 31, 32, 63, 64, 65, 200, 499, 1000):
        for count in (1, 2, 31, 32, 33, 64, 65, 128, 129, 700):
            end = start + count
            seen = sum(i // BLOCK - first(i) // BLOCK + 1 for i in range(start, end))
            assert visible_blocks(start, count, window) == seen, (start, count)
            passes = range(start, end, ROWS)
            read = sum((min(i + ROWS, end) - 1) // BLOCK - first(i) // BLOCK + 1 for i in passes)
            assert read_blocks(start, count, window) == read, (start, count)
