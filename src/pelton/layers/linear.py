"""Projections and residual sums."""

from pelton.program.builder import Builder


def linear(
    builder: Builder,
    x: str,
    layer: str,
    shape: tuple[int, int],
    name: str,
    *,
    shard: str,
    bias: bool = False,
    row_order: tuple[int, ...] | None = None,
) -> str:
    """Adds x [T, cols] @ W.T (+ b), W = `layer`.weight of `shape` (rows, cols), b = `layer`.bias; returns `name`.

    `shard`: the axis tensor parallelism cuts. `row_order`: the file's row for each row, where they differ.
    """
    rows, cols = shape
    matrix = builder.matrix(f"{layer}.weight", rows, cols, row_order=row_order, shard=shard)
    offset = builder.vector(f"{layer}.bias", rows, row_order=row_order) if bias else ""
    return builder.op("linear", (x,), (name,), weights=(matrix,), attrs={"biases": (offset,)})[0]


def add(builder: Builder, x: str, residual: str, name: str) -> str:
    """Adds residual + x, both [T, width]; returns `name`."""
    return builder.op("add", (x, residual), (name,))[0]
