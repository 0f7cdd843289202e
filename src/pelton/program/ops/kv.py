"""kv_write and rope_kv: new keys and values enter the cache.

Never in one fused group with the attend that reads them.
"""

from pelton.program.op import Cost, Op, Tables
from pelton.program.values import Dim, StepShape


def kv_bytes(op: Op, tables: Tables, step: StepShape) -> int:
    """Bytes the step's tokens take in one layer of the op's state."""
    assert op.state is not None
    return step.tokens * tables.states[op.state].spec.token_bytes(tables.kv_element)


class KVWrite:
    """inputs (k, v) [T, heads x dim]; state; attrs layer. Stores them at each token's slot."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        assert op.state is not None
        spec = tables.states[op.state].spec
        k, v = (tables.values[name].shape[1] for name in op.inputs)
        if (k, v) != (spec.heads * spec.key_dim, spec.heads * spec.value_dim):
            raise ValueError(f"kv_write: widths {k}, {v} do not fit {spec}")
        return ()

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        read = sum(step.nbytes(tables.values[name]) for name in op.inputs)
        return Cost(read=read, written=kv_bytes(op, tables, step))

    def lower(self, op: Op) -> list[Op] | None:
        return None


class RopeKV:
    """rope of q and k, then kv_write: inputs (q, k, v, table), output rotated q.

    attrs layer, heads, kv_heads, interleaved.
    """

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        return (tables.values[op.inputs[0]].shape,)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        q, k, v, table = (step.nbytes(tables.values[name]) for name in op.inputs)
        flops = 3 * (table // 4) * (op.integer("heads") + op.integer("kv_heads"))
        return Cost(flops=flops, read=q + k + v + table, written=q + kv_bytes(op, tables, step))

    def lower(self, op: Op) -> list[Op] | None:
        q, k, v, table = op.inputs
        (rotated,) = op.outputs
        interleaved = op.attrs.get("interleaved", False)
        return [
            Op("rope", (q, table), (rotated,), attrs={"heads": op.integer("heads"), "interleaved": interleaved}),
            Op(
                "rope",
                (k, table),
                (f"{rotated}.k",),
                attrs={"heads": op.integer("kv_heads"), "interleaved": interleaved},
            ),
            Op("kv_write", (f"{rotated}.k", v), (), state=op.state, attrs={"layer": op.integer("layer")}),
        ]
