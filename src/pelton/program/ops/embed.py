"""embed: rows of a table by token id, optionally scaled. inputs (ids,), weights (table,), attrs scale."""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import TOKENS, Dim, StepShape


class Embed:
    """x[t] = table[ids[t]] * scale, fp32 [T, width]."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        return ((TOKENS, tables.storage(op.weights[0]).cols),)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        table = tables.storage(op.weights[0])
        return Cost(
            flops=step.tokens * table.cols,
            read=step.tokens * (tables.matrix_bytes(op.weights[0]) // table.rows + 4),
            written=step.tokens * table.cols * 4,
        )

    def lower(self, op: Op) -> list[Op] | None:
        return None
