"""attend: queries over the cached keys and values of their own sequence (arXiv 2205.14135, 2309.06180).

inputs (q,) [T, heads x key_dim]; state; attrs layer, heads, scale, softcap (0: none), slopes (one for each query head,
or none): added to a score is slope * (j - i), i the query's and j the key's index. Output [T, heads x value_dim]. The
window is the state's. Query head a reads KV head a // (heads / kv_heads).
"""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import Dim, StepShape

BLOCK = 32  # tokens a KV block holds; kernels read and multiply whole blocks
ROWS = 64  # query rows of one sequence that share a pass over its KV blocks
SOFTMAX_FLOPS = 20  # per score: scaling, our own exp, sum
SOFTCAP_FLOPS = 20  # our own tanh and two factors
SLOPE_FLOPS = 2


def visible_blocks(index: int, window: int | None) -> int:
    """KV blocks that hold a key which the query at `index` sees."""
    first = 0 if window is None else max(0, index - window + 1)
    return index // BLOCK - first // BLOCK + 1


class Attend:
    """Causal softmax attention; the token at index i sees indices up to i (with a window W: i - W < j <= i)."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        assert op.state is not None
        spec, heads = tables.states[op.state].spec, op.integer("heads")
        rows, width = tables.values[op.inputs[0]].shape
        slopes = op.attrs.get("slopes", ())
        if not isinstance(slopes, tuple) or len(slopes) not in (0, heads):
            raise ValueError(f"attend: {slopes!r} are no slopes for {heads} heads")
        if width != heads * spec.key_dim or heads % spec.heads:
            raise ValueError(
                f"attend: {heads} heads of {spec.key_dim} do not fit width {width} and {spec.heads} KV heads"
            )
        return ((rows, heads * spec.value_dim),)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        """KV blocks are read once for all query heads of a group and up to ROWS of a sequence's tokens in the step."""
        assert op.state is not None
        spec, heads = tables.states[op.state].spec, op.integer("heads")
        pairs = blocks = 0
        for start, count in step.contexts:
            pairs += BLOCK * sum(visible_blocks(i, spec.window) for i in range(start, start + count))
            for first in range(start, start + count, ROWS):
                lowest = 0 if spec.window is None else max(0, first - spec.window + 1)
                blocks += (min(first + ROWS, start + count) - 1) // BLOCK - lowest // BLOCK + 1
        score = SOFTMAX_FLOPS + (SOFTCAP_FLOPS if op.number("softcap") else 0)
        score += SLOPE_FLOPS if op.attrs.get("slopes") else 0
        flops = pairs * heads * (2 * (spec.key_dim + spec.value_dim) + score)
        read = step.nbytes(tables.values[op.inputs[0]]) + blocks * BLOCK * spec.token_bytes(tables.kv_element)
        return Cost(flops=flops, read=read, written=step.tokens * heads * spec.value_dim * 4)

    def lower(self, op: Op) -> list[Op] | None:
        return None
