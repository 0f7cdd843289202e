"""fuse: joins neighbouring ops so that intermediate values never travel through memory.

Each rule keeps the arithmetic of the ops it joins, in the same order, so that a fused op gives the bits of its parts
(the parts: OpRule.lower). A KV write and the attend that reads it are never joined.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from pelton.program.module import Entry
from pelton.program.op import Attr, Op
from pelton.program.ops.linear import biases

Ops = list[Op]
Rule = Callable[[Ops], Ops]


def fuse(entry: Entry) -> Entry:
    """The entry with all rules applied, in their order; values that no op makes any more are dropped."""
    ops = list(entry.ops)
    for rule in (_merge_linears, _gate_into_linear, _norm_into_reader, _residual_into_linear, _rope_with_write):
        ops = rule(ops)
    alive = set(entry.inputs) | {name for op in ops for name in op.outputs}
    values = {name: value for name, value in entry.values.items() if name in alive}
    return replace(entry, ops=tuple(ops), values=values)


def _uses(ops: Iterable[Op]) -> Counter[str]:
    return Counter(name for op in ops for name in op.inputs)


def _with(op: Op, **attrs: Attr) -> dict[str, Attr]:
    return {**op.attrs, **attrs}


def _plain_linear(op: Op) -> bool:
    return op.kind == "linear" and len(op.inputs) == 1 and not op.text("gain") and not op.text("activation")


def _merge_linears(ops: Ops) -> Ops:
    """Linears over the same input become one with several matrices (q/k/v, gate/up), where the first of them stands."""
    merged: Ops = []
    place: dict[str, int] = {}
    for op in ops:
        if not _plain_linear(op):
            merged.append(op)
        elif op.inputs[0] not in place:
            place[op.inputs[0]] = len(merged)
            merged.append(op)
        else:
            at = place[op.inputs[0]]
            first = merged[at]
            merged[at] = replace(
                first,
                outputs=first.outputs + op.outputs,
                weights=first.weights + op.weights,
                attrs=_with(first, biases=biases(first) + biases(op)),
            )
    return merged


def _gate_into_linear(ops: Ops) -> Ops:
    """gated(gate, up) of one linear's two outputs becomes that linear's activation."""
    uses = _uses(ops)
    makers = {op.outputs: i for i, op in enumerate(ops) if _plain_linear(op) and len(op.outputs) == 2}
    result: list[Op | None] = list(ops)
    for i, op in enumerate(ops):
        if op.kind != "gated" or op.inputs not in makers or any(uses[name] != 1 for name in op.inputs):
            continue
        maker = ops[makers[op.inputs]]
        joined = replace(maker, outputs=op.outputs, attrs=_with(maker, activation=op.text("activation")))
        result[makers[op.inputs]], result[i] = joined, None
    return [op for op in result if op is not None]


def _norm_into_reader(ops: Ops) -> Ops:
    """An rms_norm with a single reader, a linear or the head, is done while that op prepares its input."""
    uses = _uses(ops)
    norms = {op.outputs[0]: op for op in ops if _whole_row_norm(op) and uses[op.outputs[0]] == 1}
    result: Ops = []
    joined: set[str] = set()
    for op in ops:
        norm = norms.get(op.inputs[0]) if op.inputs else None
        if norm is None or op.kind not in ("linear", "head") or op.text("gain"):
            result.append(op)
            continue
        joined.add(norm.outputs[0])
        attrs = _with(op, gain=norm.weights[0], eps=norm.number("eps"))
        result.append(replace(op, inputs=(norm.inputs[0], *op.inputs[1:]), attrs=attrs))
    return [op for op in result if not (op.kind == "rms_norm" and op.outputs[0] in joined)]


def _whole_row_norm(op: Op) -> bool:
    return op.kind == "rms_norm" and op.integer("heads", 1) == 1


def _residual_into_linear(ops: Ops) -> Ops:
    """add(y, residual) of a linear's only output becomes that linear's second input, where the add stands."""
    uses = _uses(ops)
    makers = {op.outputs[0]: op for op in ops if op.kind == "linear" and len(op.outputs) == 1 and len(op.inputs) == 1}
    result: Ops = []
    for op in ops:
        maker = makers.get(op.inputs[0]) if op.kind == "add" else None
        if maker is None or uses[op.inputs[0]] != 1:
            result.append(op)
            continue
        result.remove(maker)
        result.append(replace(maker, inputs=(maker.inputs[0], op.inputs[1]), outputs=op.outputs))
    return result


def _rope_with_write(ops: Ops) -> Ops:
    """rope(q), rope(k) and kv_write(k, v) of one layer become rope_kv, where the write stands."""
    uses = _uses(ops)
    ropes = {op.outputs[0]: op for op in ops if op.kind == "rope"}
    queries = {(op.state, op.integer("layer")): op.inputs[0] for op in ops if op.kind == "attend"}
    result = list(ops)
    for op in ops:
        if op.kind != "kv_write":
            continue
        key = ropes.get(op.inputs[0])
        query = ropes.get(queries.get((op.state, op.integer("layer")), ""))
        if key is None or query is None or uses[op.inputs[0]] != 1 or query.inputs[1] != key.inputs[1]:
            continue
        attrs: dict[str, Attr] = {
            "layer": op.integer("layer"),
            "heads": query.integer("heads"),
            "kv_heads": key.integer("heads"),
            "interleaved": query.attrs.get("interleaved", False),
        }
        inputs = (query.inputs[0], key.inputs[0], op.inputs[1], query.inputs[1])
        result.remove(key)
        result.remove(query)
        result[result.index(op)] = Op("rope_kv", inputs, query.outputs, state=op.state, attrs=attrs)
    return result
