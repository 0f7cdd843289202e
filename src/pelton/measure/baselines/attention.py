"""Unfused attention: the table of scores is written, read for the softmax, written and read again (arXiv 2205.14135).

Its time is that of numpy's matrix products, and of its softmax over pieces of the table that a core's cache holds, in
fp32, layer after layer, with random numbers. Bytes are counted: of fused attention by the kernels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pelton.core.clock import Clock
from pelton.core.config import EngineConfig
from pelton.engine.build import EngineParts, build_engine
from pelton.measure.baselines.gain import Gain, in_turns, middle
from pelton.measure.step_time import Pools, Shape, measure_step
from pelton.program.module import Module
from pelton.program.op import Op

ATTEND = "attend"
PASSES = 4  # over the table of scores: products write it, the softmax reads and writes it, products read it
PIECE_BYTES = 1 << 19  # of the table, with which the softmax is done before it takes the next
ELEMENT = 4  # bytes of a score
Floats = NDArray[np.float32]


def unfused_attention(config: EngineConfig, module: Module, tokens: int, repeats: int, clock: Clock) -> Gain:
    """Milliseconds that all layers' attention takes for a prompt of so many tokens, computed in one piece.

    `config` must leave room for such a step; `module` is the model's, for the costs.
    """
    ops = [op for op in module.entries["target"].ops if op.kind == ATTEND]
    parts = build_engine(config)
    try:
        theirs, ours = in_turns(
            repeats, lambda: _unfused(module, ops, tokens, clock), lambda: _fused(parts, module, tokens, clock)
        )
    finally:
        parts.close()
    moved = middle([one.bytes for one in ours])
    return Gain(
        name="fused attention",
        baseline_name="scores in memory",
        unit="ms of a prompt's attention",
        ours=1e3 * middle([one.seconds for one in ours]),
        baseline=1e3 * middle(theirs),
        more_is_better=False,
        details={
            "prompt": tokens,
            "mbytes": moved / 1e6,
            "mbytes_without": (moved + table_bytes(ops, tokens)) / 1e6,
        },
    )


def table_bytes(ops: list[Op], tokens: int) -> int:
    """What is moved of the tables of scores, half of which causality makes pointless and nobody skips."""
    return sum(PASSES * ELEMENT * op.integer("heads") * tokens * tokens for op in ops)


@dataclass(frozen=True, slots=True)
class _Fused:
    """Of one step's attention ops."""

    seconds: float
    bytes: float


def _fused(parts: EngineParts, module: Module, tokens: int, clock: Clock) -> _Fused:
    groups, executable = parts.report.kv_groups, parts.executable
    pools = Pools(tuple(blocks for blocks, _, _ in groups), tuple(window for _, _, window in groups))
    before = executable.counters()
    time = measure_step(executable, pools, Shape(tokens, 0), module.vocab, 1, clock)
    done = {name: count - before.get(name, 0) for name, count in executable.counters().items()}
    kinds = [op.kind for op in module.entries["target"].ops]
    seconds = sum(seconds for kind, seconds in zip(kinds, time.ops, strict=True) if kind == ATTEND)
    return _Fused(seconds, (done[f"read:{ATTEND}"] + done[f"written:{ATTEND}"]) / done["steps"])


def _unfused(module: Module, ops: list[Op], tokens: int, clock: Clock) -> float:
    """Seconds of all layers, of which each different one is timed once."""
    times: dict[tuple[int, int, int], float] = {}
    total = 0.0
    for op in ops:
        assert op.state is not None
        spec = module.states[op.state].spec
        shape = op.integer("heads"), spec.heads, spec.key_dim
        if shape not in times:
            times[shape] = _seconds(*shape, tokens, clock)
        total += times[shape]
    return total


def _seconds(heads: int, kv_heads: int, dim: int, tokens: int, clock: Clock) -> float:
    rng = np.random.default_rng(0)
    group = heads // kv_heads
    queries: Floats = rng.standard_normal((kv_heads, group, tokens, dim), np.float32)
    keys: Floats = rng.standard_normal((kv_heads, 1, tokens, dim), np.float32)
    values: Floats = rng.standard_normal((kv_heads, 1, tokens, dim), np.float32)
    hidden = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    unfused(queries, keys, values, hidden)  # memory that was never touched is slower
    began = clock.now()
    unfused(queries, keys, values, hidden)
    return clock.now() - began


def unfused(queries: Floats, keys: Floats, values: Floats, hidden: Floats) -> Floats:
    """softmax(Q K^T / sqrt(d) + hidden) V, the scores [KV heads, group, tokens, tokens] in memory."""
    scores: Floats = queries @ keys.swapaxes(-1, -2)
    tokens, scale = scores.shape[-1], np.float32(queries.shape[-1] ** -0.5)
    rows = max(1, PIECE_BYTES // (ELEMENT * tokens))
    for head in scores.reshape(-1, *scores.shape[-2:]):
        for first in range(0, len(head), rows):
            piece = head[first : first + rows]
            piece *= scale
            piece += hidden[first : first + rows]
            piece -= piece.max(-1, keepdims=True)
            np.exp(piece, piece)
            piece /= piece.sum(-1, keepdims=True)
    mixed: Floats = scores @ values
    return mixed
