"""head: logits of the step's logit rows and the choice of a token from each. The step's last op.

inputs (x,) [T, width]; weights (lm_head,); attrs gain and eps (rms_norm first), softcap (0: none), scale (1: none).
Runs for up to GROUP rows at a time, so the matrix is read ceil(R / GROUP) times and R x V is never stored whole.
"""

from pelton.program.op import Cost, Op, Tables
from pelton.program.ops.attend import SOFTCAP_FLOPS
from pelton.program.ops.norm import FLOPS as NORM_FLOPS
from pelton.program.values import Dim, StepShape

GROUP = 32
CHOICE_FLOPS = 20  # per logit: our own exp for the normaliser


class Head:
    """Logits = cap(norm(x[rows]) @ W.T * scale), cap(y) = softcap * tanh(y / softcap).

    Then log-probabilities and the draw, per row (see pelton.sampling).
    """

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        if tables.values[op.inputs[0]].shape[1] != tables.storage(op.weights[0]).cols:
            raise ValueError("head: input width and matrix differ")
        return ()

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        matrix, rows = tables.storage(op.weights[0]), step.logit_rows
        logit = CHOICE_FLOPS + (op.number("scale", 1.0) != 1.0) + (SOFTCAP_FLOPS if op.number("softcap") else 0)
        flops = rows * matrix.rows * (2 * matrix.cols + logit)
        read = -(-rows // GROUP) * tables.matrix_bytes(op.weights[0]) + rows * matrix.cols * 4 + rows * matrix.rows * 4
        if op.text("gain"):
            flops += NORM_FLOPS * rows * matrix.cols
            read += matrix.cols * 4
        return Cost(flops=flops, read=read, written=rows * matrix.rows * 4)

    def lower(self, op: Op) -> list[Op] | None:
        return None
