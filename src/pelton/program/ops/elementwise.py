"""add, gated and activate: element-wise ops on [rows, width] values."""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import Dim, StepShape

ACTIVATIONS = ("silu", "gelu_tanh")
ACTIVATION_FLOPS = 20  # per element: our own exp and a division


class Add:
    """inputs (x, residual): residual + x."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        one, other = (tables.values[name].shape for name in op.inputs)
        if one != other:
            raise ValueError(f"add: shapes {one} and {other} differ")
        return (one,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        size = step.nbytes(tables.values[op.inputs[0]])
        return Cost(flops=size // 4, read=2 * size, written=size)

    def lower(self, op: Op) -> list[Op] | None:
        return None


class Gated:
    """inputs (gate, up), attrs activation: act(gate) * up (SwiGLU and GeGLU, arXiv 2002.05202)."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        gate, up = (tables.values[name].shape for name in op.inputs)
        if gate != up or op.text("activation") not in ACTIVATIONS:
            raise ValueError(f"gated: shapes {gate}, {up}, activation {op.text('activation')!r}")
        return (gate,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        size = step.nbytes(tables.values[op.inputs[0]])
        return Cost(flops=(ACTIVATION_FLOPS + 1) * size // 4, read=2 * size, written=size)

    def lower(self, op: Op) -> list[Op] | None:
        return None


class Activate:
    """inputs (x,), attrs activation: act(x)."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        if op.text("activation") not in ACTIVATIONS:
            raise ValueError(f"activate: activation {op.text('activation')!r}")
        return (tables.values[op.inputs[0]].shape,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        size = step.nbytes(tables.values[op.inputs[0]])
        return Cost(flops=ACTIVATION_FLOPS * size // 4, read=size, written=size)

    def lower(self, op: Op) -> list[Op] | None:
        return None
