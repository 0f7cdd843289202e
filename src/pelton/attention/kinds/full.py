"""Softmax attention over all earlier tokens, with at most as many KV heads as query heads (arXiv 2305.13245).

Multi-head, grouped-query and multi-query are one: query head a reads KV head a // (heads / kv_heads).
"""

from pelton.attention.kind import AttentionShape
from pelton.layers.linear import linear
from pelton.layers.rotary import half_split_rows, rotate
from pelton.program.builder import Builder
from pelton.program.states import KVSpec


class FullAttention:
    """Rotary q and k; keys enter the cache rotated."""

    def kv_spec(self, shape: AttentionShape) -> KVSpec:
        return KVSpec(shape.kv_heads, shape.head_dim, shape.head_dim)

    def add(self, builder: Builder, x: str, rope: str, prefix: str, shape: AttentionShape) -> str:
        def project(source: str, part: str, size: tuple[int, int], order: tuple[int, ...] | None = None) -> str:
            shard, bias = "cols" if part == "o" else "rows", part in shape.biased
            layer, name = f"{prefix}.{part}_proj", f"{prefix}.{part}"
            return linear(builder, source, layer, size, name, shard=shard, bias=bias, row_order=order)

        def order(heads: int) -> tuple[int, ...] | None:
            return half_split_rows(heads, shape.head_dim) if shape.pairs_adjacent else None

        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        q = project(x, "q", (q_width, shape.hidden), order(shape.heads))
        k = project(x, "k", (kv_width, shape.hidden), order(shape.kv_heads))
        v = project(x, "v", (kv_width, shape.hidden))
        q, k = rotate(builder, q, rope, shape.heads), rotate(builder, k, rope, shape.kv_heads)

        state, layer = builder.state(self.kv_spec(shape))
        builder.op("kv_write", (k, v), state=state, attrs={"layer": layer})
        attrs = {"layer": layer, "heads": shape.heads, "scale": shape.scale, "softcap": 0.0}
        (mixed,) = builder.op("attend", (q,), (f"{prefix}.mixed",), state=state, attrs=attrs)
        return project(mixed, "o", (shape.hidden, q_width))
