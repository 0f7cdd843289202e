"""What each primitive op computes, in torch: one function per op kind, and the table that names them.

Fused ops have no function here; they run as their parts (OpRule.lower), so the parts define what fusing must keep.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn.functional import gelu, silu

from pelton.backends.reference.pool import BLOCK, KVPool
from pelton.backends.reference.weights import Weights
from pelton.program.op import Op

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence's part of the step: tokens [first, first + count) stand at indices [start, start + count).

    `tables` [groups, blocks]: its blocks in each KV group.
    """

    first: int
    count: int
    start: int
    tables: Tensor

    def slots(self, group: int, begin: int, end: int) -> Tensor:
        """Where the indices [begin, end) are cached in a KV group."""
        indices = torch.arange(begin, end)
        return self.tables[group, indices // BLOCK] * BLOCK + indices % BLOCK


@dataclass(frozen=True, slots=True)
class Step:
    """All that kernels see: weights, caches, the step's sequences and logit rows [R], and values as they are made.

    `exact`: fp32 throughout; otherwise inputs of products are rounded to bf16.
    """

    weights: Weights
    pools: Mapping[str, KVPool]
    sequences: tuple[Sequence, ...]
    logit_rows: Tensor
    exact: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def inputs(self, op: Op) -> list[Tensor]:
        return [self.values[name] for name in op.inputs]

    def rounded(self, x: Tensor) -> Tensor:
        """An input of a product, as the arithmetic of this step sees it."""
        return x if self.exact else x.bfloat16().float()

    def pool(self, op: Op) -> KVPool:
        assert op.state is not None, op
        return self.pools[op.state]


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


def linear(op: Op, step: Step) -> tuple[Tensor, ...]:
    (x,) = step.inputs(op)
    y = step.rounded(x) @ step.weights.get(op.weights[0]).T
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


def per_head(x: Tensor, heads: int) -> Tensor:
    """[T, heads x dim] as [T, heads, dim]."""
    return x.reshape(len(x), heads, -1)


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


def slopes_of(op: Op) -> Tensor | None:
    """One number for each query head, where scores are biased by distance (arXiv 2108.12409)."""
    slopes = op.attrs.get("slopes", ())
    return torch.tensor(slopes, dtype=torch.float32) if slopes else None


def attend(op: Op, step: Step) -> tuple[Tensor, ...]:
    """softmax(q k^T scale) v over the indices each token sees (arXiv 1706.03762), one sequence after the other."""
    pool, scale, softcap = step.pool(op), op.number("scale"), op.number("softcap")
    window, slopes = pool.spec.window, slopes_of(op)
    q = per_head(step.rounded(step.inputs(op)[0]), op.integer("heads"))
    outputs = []
    for sequence in step.sequences:
        end = sequence.start + sequence.count
        begin = 0 if window is None else max(0, sequence.start - window + 1)
        keys, values = pool.read(op.integer("layer"), sequence.slots(pool.group, begin, end))
        group = q.shape[1] // pool.spec.heads
        keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
        own = q[sequence.first : sequence.first + sequence.count].transpose(0, 1)

        scores = own @ keys.transpose(1, 2) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        query, key = torch.arange(sequence.start, end)[:, None], torch.arange(begin, end)[None, :]
        if slopes is not None:
            scores = scores + slopes[:, None, None] * (key - query)
        hidden = key > query if window is None else (key > query) | (key <= query - window)
        weights = step.rounded(torch.exp(scores - scores.masked_fill(hidden, -torch.inf).amax(-1, keepdim=True)))
        weights = weights.masked_fill(hidden, 0.0)
        mixed = weights @ values / weights.sum(-1, keepdim=True)
        outputs.append(mixed.transpose(0, 1).flatten(-2))
    return (torch.cat(outputs),)


def head(op: Op, step: Step) -> tuple[Tensor, ...]:
    """Logits [R, vocab] of the step's logit rows; drawing tokens from them is the executable's part."""
    x = step.inputs(op)[0][step.logit_rows]
    if op.text("gain"):
        x = normed(x, step.weights.get(op.text("gain")), op.number("eps"))
    logits = step.rounded(x) @ step.weights.get(op.weights[0]).T * op.number("scale", 1.0)
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
