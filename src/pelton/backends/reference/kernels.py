"""What each primitive op computes, in torch: one function per op kind, and the table that names them.

Fused ops have no function here; they run as their parts (OpRule.lower), so the parts define what fusing must keep.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch.nn.functional import gelu, silu

from pelton.backends.reference import integers
from pelton.backends.reference.attention import attend
from pelton.backends.reference.step import Step, per_head
from pelton.program.op import Op

Tensor = torch.Tensor


Kernel = Callable[[Op, Step], tuple[Tensor, ...]]
Seen = Callable[[Op, tuple[Tensor, ...]], None]


def embed(op: Op, step: Step) -> tuple[Tensor, ...]:
    (ids,) = step.inputs(op)
    return (step.weights.get(op.weights[0])[ids.long()] * op.number("scale", 1.0),)


def normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain, over the last axis."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def rms_norm(op: Op, step: Step) -> tuple[Tensor, ...]:
    (x,) = step.inputs(op)
    heads = per_head(x, op.integer("heads", 1))
    return (normed(heads, step.weights.get(op.weights[0]), op.number("eps")).flatten(-2),)


def layer_norm(op: Op, step: Step) -> tuple[Tensor, ...]:
    (x,) = step.inputs(op)
    gain = step.weights.get(op.weights[0])
    bias = step.weights.get(op.weights[1]) if len(op.weights) > 1 else None
    return (torch.nn.functional.layer_norm(x, gain.shape, gain, bias, eps=op.number("eps")),)


def multiplied(op: Op, step: Step, x: Tensor) -> Tensor:
    """x [T, cols] times the op's first matrix, in the arithmetic that the op asks for."""
    if op.text("activations"):
        return integers.product(x, step.weights.codes(op.weights[0]))
    return step.rounded(x) @ step.weights.get(op.weights[0]).T


def linear(op: Op, step: Step) -> tuple[Tensor, ...]:
    (x,) = step.inputs(op)
    y = multiplied(op, step, x)
    biases = op.attrs.get("biases")
    bias = str(biases[0]) if isinstance(biases, tuple) and biases else ""
    return (y + step.weights.get(bias) if bias else y,)


def activated(op: Op, x: Tensor) -> Tensor:
    return silu(x) if op.text("activation") == "silu" else gelu(x, approximate="tanh")


def gated(op: Op, step: Step) -> tuple[Tensor, ...]:
    gate, up = step.inputs(op)
    return (activated(op, gate) * up,)


def activate(op: Op, step: Step) -> tuple[Tensor, ...]:
    return (activated(op, step.inputs(op)[0]),)


def add(op: Op, step: Step) -> tuple[Tensor, ...]:
    x, residual = step.inputs(op)
    return (residual + x,)


def rope_table(op: Op, step: Step) -> tuple[Tensor, ...]:
    (positions,) = step.inputs(op)
    angles = positions.double()[:, None] * torch.tensor(op.attrs["inverse_frequencies"], dtype=torch.float64)
    return ((torch.cat((angles.cos(), angles.sin()), dim=-1) * op.number("factor", 1.0)).float(),)


def rope(op: Op, step: Step) -> tuple[Tensor, ...]:
    """Rotates the first 2n numbers of each head, n = pairs in the table; pairs are (j, j + n) or (2j, 2j + 1)."""
    x, table = step.inputs(op)
    heads = per_head(x, op.integer("heads"))
    cos, sin = (part[:, None] for part in table.chunk(2, dim=-1))
    pairs = cos.shape[-1]
    turned, rest = heads[..., : 2 * pairs], heads[..., 2 * pairs :]
    if op.attrs.get("interleaved", False):
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return (torch.cat((out, rest), dim=-1).flatten(-2),)


def kv_write(op: Op, step: Step) -> tuple[Tensor, ...]:
    pool = step.pool(op)
    k, v = (per_head(x, pool.spec.heads) for x in step.inputs(op))
    for sequence in step.sequences:
        own = slice(sequence.first, sequence.first + sequence.count)
        slots = sequence.slots(pool.group, sequence.start, sequence.start + sequence.count)
        pool.write(op.integer("layer"), slots, k[own], v[own])
    return ()


def head(op: Op, step: Step) -> tuple[Tensor, ...]:
    """Logits [R, vocab] of the step's logit rows; drawing tokens from them is the executable's part."""
    x = step.inputs(op)[0][step.logit_rows]
    if op.text("gain"):
        x = normed(x, step.weights.get(op.text("gain")), op.number("eps"))
    logits = multiplied(op, step, x) * op.number("scale", 1.0)
    softcap = op.number("softcap")
    return (softcap * torch.tanh(logits / softcap) if softcap else logits,)


KERNELS: Mapping[str, Kernel] = {
    "embed": embed,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "linear": linear,
    "gated": gated,
    "activate": activate,
    "add": add,
    "rope_table": rope_table,
    "rope": rope,
    "kv_write": kv_write,
    "attend": attend,
    "head": head,
}


def execute(ops: Iterable[Op], step: Step, seen: Seen | None = None) -> tuple[Tensor, ...]:
    """Runs primitive ops in order, leaving their outputs in the step's values; returns what the last one gave.

    `seen(op, results)` is called after each.
    """
    results: tuple[Tensor, ...] = ()
    for op in ops:
        results = KERNELS[op.kind](op, step)
        if seen is not None:
            seen(op, results)
        step.values.update(zip(op.outputs, results, strict=False))  # logits have no name
    return results
