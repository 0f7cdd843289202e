"""rms_norm: inputs (x,), weights (gain,), attrs eps. y = x / sqrt(mean(x^2) + eps) * gain (arXiv 1910.07467)."""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import Dim, StepShape

FLOPS = 4  # per element: square and sum, two products


class RMSNorm:
    """Per row of [rows, width], all in fp32."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        x = tables.values[op.inputs[0]].shape
        if x[-1] != tables.storage(op.weights[0]).cols:
            raise ValueError(f"rms_norm: width {x[-1]} and gain {op.weights[0]!r} differ")
        return (x,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        size = step.nbytes(tables.values[op.inputs[0]])
        return Cost(flops=FLOPS * size // 4, read=size + tables.storage(op.weights[0]).cols * 4, written=size)

    def lower(self, op: Op) -> list[Op] | None:
        return None
