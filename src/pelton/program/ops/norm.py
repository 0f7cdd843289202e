"""rms_norm and layer_norm: rows brought to one scale, all in fp32.

rms_norm: inputs (x,), weights (gain,), attrs eps, heads (1): each of `heads` equal parts of a row is normed by itself.
layer_norm: inputs (x,), weights (gain,) or (gain, bias), attrs eps.
"""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import Dim, StepShape

FLOPS = 4  # per element: square and sum, two products
LAYER_FLOPS = 7  # a sum, a difference, square and sum, two products, and a sum


class RMSNorm:
    """y = x / sqrt(mean(x^2) + eps) * gain over each part (arXiv 1910.07467); all parts have the same gain."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        x, heads = tables.values[op.inputs[0]].shape, op.integer("heads", 1)
        width = tables.storage(op.weights[0]).cols
        if heads < 1 or x[-1] != heads * width:
            raise ValueError(f"rms_norm: width {x[-1]}, {heads} parts and gain {op.weights[0]!r} of {width} do not fit")
        return (x,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        return _cost(FLOPS, op, tables, step)

    def lower(self, op: Op) -> list[Op] | None:
        return None


class LayerNorm:
    """y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * gain + bias over each row (arXiv 1607.06450)."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        x = tables.values[op.inputs[0]].shape
        widths = [tables.storage(name).cols for name in op.weights]
        if any(width != x[-1] for width in widths):
            raise ValueError(f"layer_norm: width {x[-1]} and weights of {widths} differ")
        return (x,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        return _cost(LAYER_FLOPS, op, tables, step)

    def lower(self, op: Op) -> list[Op] | None:
        return None


def _cost(flops: int, op: Op, tables: Tables, step: StepShape) -> Cost:
    size = step.nbytes(tables.values[op.inputs[0]])
    weights = sum(tables.storage(name).cols for name in op.weights) * 4
    return Cost(flops=flops * size // 4, read=size + weights, written=size)
