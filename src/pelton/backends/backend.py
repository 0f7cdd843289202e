"""The interface of a backend: it refuses or compiles a Module; the Executable then runs one step per call.

Arrays in, arrays out: a StepInputs holds everything one step needs, a StepOutputs everything it gave.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pelton.program.module import Module
from pelton.program.op import Op

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

# One logit row's sampling record; mirrors `Sampling` in cpu/native/kernels.h byte for byte.
SAMPLING = np.dtype(
    [
        ("seed", np.uint64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
        ("place", np.uint32),
        ("child", np.uint32),
        ("logprobs", np.int32),
        ("flags", np.int32),
    ]
)
Records = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step for S sequences, T tokens, R logit rows.

    `tokens` [T] sequence after sequence; `positions` [T] rotary coordinates; `starts` [S] index of each
    sequence's first token here; `counts` [S] its tokens here; `tables` KV block ids, sequence s at
    [table_offsets[s], table_offsets[s + 1]); `logit_rows` [R] places in `tokens`; `sampling` [R] of SAMPLING;
    `want_logits`: also return all logits of these rows.
    """

    tokens: Int32
    positions: Int32
    starts: Int32
    counts: Int32
    tables: Int32
    table_offsets: Int32
    logit_rows: Int32
    sampling: Records
    want_logits: bool = False


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """[R] each: drawn tokens, their raw log-probabilities and ranks, faults (nonzero: NaN or infinity in the logits).

    `top_ids`, `top_logprobs` [R, K], K = the largest `logprobs` of the step (entries behind a row's own number are
    -1 and -inf). `logits` [R, vocab] where asked for.
    """

    tokens: Int32
    logprobs: Float32
    ranks: Int32
    faults: Int32
    top_ids: Int32
    top_logprobs: Float32
    logits: Float32 | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What a backend runs on, for reports: `isa` and why no better one, worker threads, free memory in bytes."""

    name: str
    isa: str
    threads: int
    free_memory: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Sizes and arithmetic of an Executable. `exact`: fp32 inputs and KV instead of bf16 ones. threads 0: all allowed.

    `choose(logits [vocab], record) -> (token, logprob, rank, top_ids, top_logprobs)`: the mathematics of sampling,
    handed in for backends that have no native form of it.
    """

    max_tokens: int
    max_rows: int
    exact: bool = False
    threads: int = 0
    entry: str = "target"
    choose: Callable[[Float32, np.void], tuple[int, float, int, list[int], list[float]]] | None = None


class BlockOps(Protocol):
    """Work on KV blocks whose bytes only the backend understands."""

    def copy(self, source: int, target: int) -> None: ...
    def scrub(self, block: int) -> None: ...
    def export_canonical(self, block: int, tokens: int) -> dict[str, Float32]:
        """Per group: fp32 [layers, 2, heads, tokens, dim] of its first tokens; keys and values equally wide."""
        ...

    def import_canonical(self, block: int, data: dict[str, Float32]) -> None: ...


class Executable(Protocol):
    """A compiled Program. Not thread-safe: one step at a time."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block in all layers."""
        ...

    def allocate(self, blocks: int) -> None:
        """Makes room for this many KV blocks; memory is touched only as blocks are used."""
        ...

    def run(self, inputs: StepInputs) -> StepOutputs: ...
    def blocks(self) -> BlockOps: ...
    def counters(self) -> dict[str, int]:
        """Totals since the start: steps, weight_bytes, and per op kind flops:<kind>, read:<kind>, written:<kind>."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Turns Programs into Executables."""

    def refuses(self, op: Op) -> str | None:
        """Why this backend has no kernel for the op, or None."""
        ...

    def compile(self, module: Module, options: CompileOptions) -> Executable:
        """Raises BackendError with every refusal if some op has no kernel."""
        ...

    def machine(self, threads: int = 0) -> Machine:
        """What it would run on with this setting of threads."""
        ...
