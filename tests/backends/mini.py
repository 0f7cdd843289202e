"""A small Llama with random weights in any file format, and a feeder of steps for it.

Bits are compared, not meanings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.oracle.driver import sampling
from tests.program.sources import drawn

from pelton.backends.backend import CompileOptions, Executable, StepInputs, StepOutputs
from pelton.backends.cpu.backend import CpuBackend
from pelton.models import build_module
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.states import State
from pelton.program.weights import TensorSource

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 96, 160, 6, 2, 16, 3, 500
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
MATRICES = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


@dataclass(frozen=True)
class Source:
    """What a checkpoint gives a model family."""

    tensors: Mapping[str, TensorSource]
    config: Mapping[str, Any]
    layout: str = "hf"


def mini_module(form: str = "Q4_1", *, embedding: str = "Q8_0", fused: bool = True, layers: int = LAYERS) -> Module:
    """The Module; `form` is the format of all matrices but the embedding."""
    tensors: dict[str, TensorSource] = {}

    def add(name: str, shape: tuple[int, ...], kind: str) -> None:
        tensors[name] = drawn(name, shape, kind, seed=len(tensors))

    add("model.embed_tokens.weight", (VOCAB, HIDDEN), embedding)
    add("model.norm.weight", (HIDDEN,), "F32")
    for layer in range(layers):
        for name, shape in MATRICES.items():
            add(f"model.layers.{layer}.{name}.weight", shape, form)
        add(f"model.layers.{layer}.input_layernorm.weight", (HIDDEN,), "F32")
        add(f"model.layers.{layer}.post_attention_layernorm.weight", (HIDDEN,), "F32")
    module = build_module(Source(tensors, {**CONFIG, "num_hidden_layers": layers}))
    return run_passes(module) if fused else module


def with_windows(module: Module, *windows: int) -> Module:
    """The module with one KV group more for each window; it has as many layers as groups at least.

    Layer i is in group i modulo their number, 0 being the full one. Layers count anew in each group.
    """
    (full,) = module.states.values()
    specs = [full.spec, *(replace(full.spec, window=window) for window in windows)]
    groups = len(specs)
    entry = module.entries["target"]
    ops = tuple(
        replace(
            op,
            state=f"kv{op.integer('layer') % groups}",
            attrs={**op.attrs, "layer": op.integer("layer") // groups},
        )
        if op.state
        else op
        for op in entry.ops
    )
    states = {f"kv{i}": State(f"kv{i}", spec, -(-(full.layers - i) // groups)) for i, spec in enumerate(specs)}
    return replace(module, states=states).with_entry(replace(entry, ops=ops))


def compiled(
    module: Module, *, threads: int = 2, exact: bool = False, tokens: int = 600, rows: int = 64, blocks: int = 160
) -> Executable:
    """An executable of the CPU backend with room for `blocks` KV blocks."""
    executable = CpuBackend().compile(module, CompileOptions(tokens, rows, exact=exact, threads=threads))
    executable.allocate((blocks,) * len(module.states))
    return executable


@dataclass(frozen=True)
class Piece:
    """Tokens of one sequence at indices from `start` on; its last token's logits are wanted.

    `table`: its blocks; with several KV groups a row for each of them.
    """

    tokens: Sequence[int]
    start: int
    table: Sequence[int] | Sequence[Sequence[int]]


def run(executable: Executable, pieces: Sequence[Piece], **fields: float) -> StepOutputs:
    """One step of these sequences; a logit row for each."""
    return executable.run(inputs(pieces, **fields))


def inputs(pieces: Sequence[Piece], **fields: float) -> StepInputs:
    """What `run` hands over; `fields` of all sampling records."""
    counts = [len(piece.tokens) for piece in pieces]
    tables = [np.atleast_2d(np.array(piece.table, np.int32)) for piece in pieces]
    positions = [np.arange(p.start, p.start + n, dtype=np.int32) for p, n in zip(pieces, counts, strict=True)]
    return StepInputs(
        tokens=np.concatenate([np.array(piece.tokens, np.int32) for piece in pieces]),
        positions=np.concatenate(positions),
        starts=np.array([piece.start for piece in pieces], np.int32),
        counts=np.array(counts, np.int32),
        tables=np.concatenate(tables, axis=1),
        table_offsets=np.cumsum([0, *(table.shape[1] for table in tables)]).astype(np.int32),
        logit_rows=(np.cumsum(counts) - 1).astype(np.int32),
        sampling=sampling(len(pieces), **fields),
        want_logits=True,
    )


def bits(outputs: StepOutputs, row: int) -> bytes:
    """Logits, token and log-probability of one row, to the bit."""
    logits = outputs.logits
    assert logits is not None
    return logits[row].tobytes() + outputs.tokens[row].tobytes() + outputs.logprobs[row].tobytes()


def random_tokens(count: int, seed: int = 0) -> list[int]:
    ids: NDArray[np.int64] = np.random.default_rng([seed, count]).integers(0, VOCAB, count)
    return ids.tolist()
