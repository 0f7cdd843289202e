"""rope_table and rope: rotary position embedding (arXiv 2104.09864)."""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import TOKENS, Dim, StepShape

TABLE_FLOPS = 60  # per angle: argument reduction and two polynomials in fp64


class RopeTable:
    """inputs (positions,), attrs inverse_frequencies (fp64, radians per position), factor (multiplies cos and sin).

    Output [T, 2 x n]: n cosines, then n sines, of position * inverse frequency, in fp64 rounded to fp32.
    """

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        return ((TOKENS, 2 * self._count(op)),)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        count = self._count(op)
        return Cost(flops=TABLE_FLOPS * step.tokens * count, read=step.tokens * 4, written=step.tokens * count * 8)

    def lower(self, op: Op) -> list[Op] | None:
        return None

    def _count(self, op: Op) -> int:
        frequencies = op.attrs["inverse_frequencies"]
        assert isinstance(frequencies, tuple)
        return len(frequencies)


class Rope:
    """inputs (x, table), attrs heads, interleaved: rotates the first 2n numbers of each head, the rest pass through.

    Pairs are (j, j + n) within the rotated part, or (2j, 2j + 1) when interleaved.
    """

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        x, table = (tables.values[name].shape for name in op.inputs)
        if step_width(x[1], op.integer("heads")) < step_width(table[1], 1):
            raise ValueError(f"rope: table {table} is wider than a head of {x}")
        return (x,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        x, table = (step.nbytes(tables.values[name]) for name in op.inputs)
        return Cost(flops=3 * (table // 4) * op.integer("heads"), read=x + table, written=x)

    def lower(self, op: Op) -> list[Op] | None:
        return None


def step_width(dim: Dim, parts: int) -> int:
    """Width of one of `parts` equal parts of a constant dimension."""
    assert isinstance(dim, int) and dim % parts == 0, (dim, parts)
    return dim // parts
