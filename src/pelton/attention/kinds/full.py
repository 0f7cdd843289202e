"""Softmax attention over all earlier tokens or a window of them, with at most as many KV heads as query heads.

Multi-head, grouped-query and multi-query (arXiv 2305.13245) are one: query head a reads KV head
a // (heads / kv_heads).
"""

from pelton.attention.kind import AttentionShape
from pelton.layers.linear import linear
from pelton.layers.norm import norm
from pelton.layers.rotary import half_split_rows, rotate
from pelton.program.builder import Builder
from pelton.program.states import KVSpec


class FullAttention:
    """Keys enter the cache as queries meet them: normed and turned."""

    def kv_spec(self, shape: AttentionShape) -> KVSpec:
        return KVSpec(shape.kv_heads, shape.head_dim, shape.head_dim, shape.window)

    def add(self, builder: Builder, x: str, rope: str | None, prefix: str, shape: AttentionShape) -> str:
        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def project(source: str, part: str, size: tuple[int, int], order: tuple[int, ...] | None = None) -> str:
            shard, bias = "cols" if part == "o" else "rows", part in shape.biased
            layer, name = f"{prefix}.{part}_proj", f"{prefix}.{part}"
            return linear(builder, source, layer, size, name, shard=shard, bias=bias, row_order=order)

        def order(heads: int) -> tuple[int, ...] | None:
            return half_split_rows(heads, shape.head_dim) if shape.pairs_adjacent else None

        def placed(value: str, part: str, heads: int) -> str:
            """q or k with what is done to both: norms, then the turn."""
            layer = f"{prefix}.{part}_norm"
            if shape.row_norm is not None:
                value = norm(builder, value, layer, heads * shape.head_dim, shape.row_norm, f"{value}.normed")
            if shape.head_norm is not None:
                value = norm(builder, value, layer, shape.head_dim, shape.head_norm, f"{value}.normed", heads)
            return value if rope is None else rotate(builder, value, rope, heads, interleaved=shape.interleaved)

        q = project(x, "q", (q_width, shape.hidden), order(shape.heads))
        k = project(x, "k", (kv_width, shape.hidden), order(shape.kv_heads))
        v = project(x, "v", (kv_width, shape.hidden))
        q, k = placed(q, "q", shape.heads), placed(k, "k", shape.kv_heads)

        state, layer = builder.state(self.kv_spec(shape))
        builder.op("kv_write", (k, v), state=state, attrs={"layer": layer})
        attrs = {"layer": layer, "heads": shape.heads, "scale": shape.scale, "softcap": shape.softcap}
        (mixed,) = builder.op(
            "attend", (q,), (f"{prefix}.mixed",), state=state, attrs={**attrs, "slopes": shape.slopes}
        )
        return project(mixed, "o", (shape.hidden, q_width))
