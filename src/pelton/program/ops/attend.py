"""attend: queries over the cached keys and values of their own sequence (arXiv 2205.14135, 2309.06180).

inputs (q,) [T, heads x key_dim]; state; attrs layer, heads, scale, softcap (0: none), slopes (one for each query head,
or none): added to a score is slope * (j - i), i the query's and j the key's index. Output [T, heads x value_dim]; with
the attr lse a second one [T, heads]: log of the sum of exp(score) over what the token sees. The window is the state's.
Query head a reads KV head a // (heads / kv_heads).
"""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import Dim, StepShape

BLOCK = 32  # tokens a KV block holds; kernels read and multiply whole blocks
ROWS = 64  # query rows of one sequence that share a pass over its KV blocks
SOFTMAX_FLOPS = 20  # per score: scaling, our own exp, sum
SOFTCAP_FLOPS = 20  # our own tanh and two factors
SLOPE_FLOPS = 2


def visible_blocks(start: int, count: int, window: int | None) -> int:
    """KV blocks that hold a key which a query sees, summed over the queries at `count` indices from `start` on."""
    behind = 0 if window is None else _blocks_before(start + count - window + 1) - _blocks_before(start - window + 1)
    return _blocks_before(start + count) - _blocks_before(start) - behind + count


def read_blocks(start: int, count: int, window: int | None) -> int:
    """KV blocks that are read for these queries, once for up to ROWS of them."""
    passes, per_pass = -(-count // ROWS), ROWS // BLOCK
    # Passes k = 0 .. passes - 1 end in block (start + ROWS - 1) // BLOCK + per_pass k, but for the last one.
    last = (start + count - 1) // BLOCK
    ends = (passes - 1) * ((start + ROWS - 1) // BLOCK) + per_pass * ((passes - 1) * (passes - 2) // 2) + last
    if window is None:
        return ends + passes
    # Those from k = free on begin behind block 0, in block lowest // BLOCK + per_pass k.
    lowest = start - window + 1
    free = min(passes, max(0, -(lowest // ROWS)))
    begins = (passes - free) * (lowest // BLOCK) + per_pass * (passes * (passes - 1) - free * (free - 1)) // 2
    return ends + passes - begins


def _blocks_before(end: int) -> int:
    """The sum of index // BLOCK over the indices from 0 to `end` (0 where that is negative)."""
    whole, rest = divmod(max(0, end), BLOCK)
    return BLOCK * whole * (whole - 1) // 2 + whole * rest


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
        out = (rows, heads * spec.value_dim)
        return (out, (rows, heads)) if op.attrs.get("lse", False) else (out,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        """KV blocks are read once for all query heads of a group and up to ROWS of a sequence's tokens in the step.

        Where several sequences share blocks, a backend may read less than this says.
        """
        assert op.state is not None
        spec, heads = tables.states[op.state].spec, op.integer("heads")
        pairs = blocks = 0
        for start, count in step.contexts:
            pairs += BLOCK * visible_blocks(start, count, spec.window)
            blocks += read_blocks(start, count, spec.window)
        score = SOFTMAX_FLOPS + (SOFTCAP_FLOPS if op.number("softcap") else 0)
        score += SLOPE_FLOPS if op.attrs.get("slopes") else 0
        flops = pairs * heads * (2 * (spec.key_dim + spec.value_dim) + score)
        read = step.nbytes(tables.values[op.inputs[0]]) + blocks * BLOCK * spec.token_bytes(tables.kv_element)
        written = step.tokens * heads * (spec.value_dim + (1 if op.attrs.get("lse", False) else 0)) * 4
        return Cost(flops=flops, read=read, written=written)

    def lower(self, op: Op) -> list[Op] | None:
        return None
