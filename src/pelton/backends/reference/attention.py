"""Softmax attention in torch, one sequence after the other, and what each key is worth to some rows."""

import torch

from pelton.backends.backend import ColumnSums
from pelton.backends.reference.step import Sequence, Step, Tensor, per_head
from pelton.program.op import Op


def slopes_of(op: Op) -> Tensor | None:
    """One number for each query head, where scores are biased by distance (arXiv 2108.12409)."""
    slopes = op.attrs.get("slopes", ())
    return torch.tensor(slopes, dtype=torch.float32) if slopes else None


def first_seen(op: Op, step: Step, sequence: Sequence) -> int:
    """The lowest index that one of the sequence's tokens sees."""
    window = step.pool(op).spec.window
    return 0 if window is None else max(0, sequence.start - window + 1)


def scores_of(op: Op, step: Step, sequence: Sequence) -> Tensor:
    """[heads, count, keys from first_seen on]: capped and biased scores, -inf where a token does not see the key."""
    pool, scale, softcap = step.pool(op), op.number("scale"), op.number("softcap")
    window, slopes, begin = pool.spec.window, slopes_of(op), first_seen(op, step, sequence)
    q = per_head(step.rounded(step.inputs(op)[0]), op.integer("heads"))
    keys, _ = pool.read(op.integer("layer"), sequence.slots(pool.group, begin, sequence.start + sequence.count))
    keys = keys.repeat_interleave(q.shape[1] // pool.spec.heads, dim=0)
    scores = q[sequence.first : sequence.first + sequence.count].transpose(0, 1) @ keys.transpose(1, 2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    query = sequence.indices()[:, None]
    key = torch.cat((torch.arange(begin, sequence.start), sequence.indices()))[None, :]
    if slopes is not None:
        scores = scores + slopes[:, None, None] * (key - query)
    before = torch.ones(sequence.count, sequence.start - begin, dtype=torch.bool)
    seen = torch.cat((before, sequence.seen()), dim=1)
    if window is not None:
        seen = seen & (key > query - window)
    return scores.masked_fill(~seen, -torch.inf)


def attend(op: Op, step: Step) -> tuple[Tensor, ...]:
    """softmax(q k^T scale) v over the indices each token sees (arXiv 1706.03762); with `lse` also the logarithms."""
    pool = step.pool(op)
    outputs, logarithms = [], []
    for sequence in step.sequences:
        scores = scores_of(op, step, sequence)
        slots = sequence.slots(pool.group, first_seen(op, step, sequence), sequence.start + sequence.count)
        _, values = pool.read(op.integer("layer"), slots)
        values = values.repeat_interleave(len(scores) // pool.spec.heads, dim=0)
        largest = scores.amax(-1, keepdim=True)
        weights = step.rounded(torch.exp(scores - largest))
        total = weights.sum(-1, keepdim=True)
        outputs.append((weights @ values / total).transpose(0, 1).flatten(-2))
        logarithms.append((largest + total.log()).squeeze(-1).transpose(0, 1))
    return (torch.cat(outputs), torch.cat(logarithms)) if op.attrs.get("lse", False) else (torch.cat(outputs),)


def add_columns(wish: ColumnSums, op: Op, step: Step) -> None:
    """Adds softmax weights of the wish's rows to its sums."""
    for sequence in step.sequences:
        if not sequence.first <= wish.first < sequence.first + sequence.count:
            continue
        scores = scores_of(op, step, sequence)
        rows = slice(wish.first - sequence.first, wish.first - sequence.first + wish.rows)
        weights = torch.softmax(scores, dim=-1)[:, rows]
        begin, heads = first_seen(op, step, sequence), step.pool(op).spec.heads
        sums = weights.sum(1).reshape(heads, -1, weights.shape[-1]).sum(1).numpy()
        keys = min(sums.shape[1], wish.sums.shape[1] - begin)
        wish.sums[:, begin : begin + keys] += sums[:, :keys]
