"""linear: products with one or more matrices over the same input, with what is fused around them.

inputs (x,) or (x, residual); weights: the matrices; outputs: one for each matrix, or one when `activation` joins two.
attrs: `gain` and `eps` (rms_norm of x first), `biases` (a vector view or "" for each matrix), `activation`;
`activations`: "int8" where rows are rounded to 8 bits and products are those of integers (docs/numerics.md).
"""

from pelton.program.op import Cost, Op, Tables
from pelton.program.ops.elementwise import ACTIVATION_FLOPS
from pelton.program.ops.norm import FLOPS as NORM_FLOPS
from pelton.program.values import Dim, StepShape


def biases(op: Op) -> tuple[str, ...]:
    """The bias view of each matrix, "" where it has none."""
    given = op.attrs.get("biases", ())
    assert isinstance(given, tuple)
    return tuple(str(name) for name in given) or ("",) * len(op.weights)


class Linear:
    """y_i = norm(x) @ W_i.T + b_i; then act(y_0) * y_1 with `activation`; then residual + y with two inputs."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        x = tables.values[op.inputs[0]].shape
        widths = []
        for name in op.weights:
            storage = tables.storage(name)
            if storage.cols != x[-1]:
                raise ValueError(f"linear: input width {x[-1]}, but {name!r} has {storage.cols} columns")
            widths.append(storage.rows)
        if op.text("activation"):
            widths = widths[:1]
        return tuple((x[0], width) for width in widths)

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        x = tables.values[op.inputs[0]]
        rows, width = step.size(x.shape[0]), step.size(x.shape[1])
        storages = [tables.storage(name) for name in op.weights]
        outputs = sum(storage.rows for storage in storages)
        flops = 2 * rows * width * outputs
        read = rows * width * 4 + sum(tables.matrix_bytes(name) for name in op.weights)
        written_width = storages[0].rows if op.text("activation") else outputs
        if op.text("gain"):
            flops += NORM_FLOPS * rows * width
            read += width * 4
        for storage, bias in zip(storages, biases(op), strict=True):
            if bias:
                flops += rows * storage.rows
                read += storage.rows * 4
        if op.text("activation"):
            flops += (ACTIVATION_FLOPS + 1) * rows * written_width
        if len(op.inputs) > 1:
            flops += rows * written_width
            read += rows * written_width * 4
        return Cost(flops=flops, read=read, written=rows * written_width * 4)

    def lower(self, op: Op) -> list[Op] | None:
        gain, activation, residual = op.text("gain"), op.text("activation"), op.inputs[1:]
        if not (gain or activation or residual or len(op.weights) > 1):
            return None
        last, ops, x = op.outputs[-1], [], op.inputs[0]
        if gain:
            ops.append(Op("rms_norm", (x,), (f"{last}.normed",), (gain,), attrs={"eps": op.attrs["eps"]}))
            x = f"{last}.normed"
        rounded = {"activations": op.text("activations")} if op.text("activations") else {}
        names = op.outputs if not (activation or residual) else tuple(f"{last}.{i}" for i in range(len(op.weights)))
        for name, weight, bias in zip(names, op.weights, biases(op), strict=True):
            ops.append(Op("linear", (x,), (name,), (weight,), attrs={"biases": (bias,), **rounded}))
        if activation:
            target = f"{last}.gated" if residual else last
            ops.append(Op("gated", names, (target,), attrs={"activation": activation}))
            names = (target,)
        if residual:
            ops.append(Op("add", (names[0], residual[0]), (last,)))
        return ops
