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
        ("flags", np.int32),  # ONLY_ALLOWED
        ("repetition", np.float32),
        ("frequency", np.float32),
        ("presence", np.float32),
        ("target", np.int32),  # -1: draw; else this token is reported and nothing drawn
    ]
)
ONLY_ALLOWED = 1  # tokens without an edit marked ALLOWED are at -inf
# One change to one token's logit before the choice; mirrors `Edit` in kernels.h. A row has at most one for each token.
# In fp32: x += bias; if SEEN: x = x < 0 ? x * repetition : x / repetition;
# x -= frequency * count; if count > 0: x -= presence.
EDIT = np.dtype([("token", np.int32), ("bias", np.float32), ("count", np.int32), ("flags", np.int32)])
SEEN, ALLOWED = 1, 2
COPY, SCRUB, SAVE, LOAD = 0, 1, 2, 3  # kinds of block_ops
MAX_TREE = 256  # tokens of a sequence in a step that form a tree
MAX_COLUMNS = 8  # wishes for column sums in a step
# Why a row has no token: 1 NaN or infinity among its raw logits, 2 no token is left to choose from.
FAULT_BAD_LOGITS, FAULT_NO_TOKEN = 1, 2
Records = NDArray[np.void]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """A wish: how much weight each key has from rows [first, first + rows) of the step, all of one sequence's chain.

    To `sums` fp32 [KV heads, N] the rows' softmax weights are added, at each key index that a row sees, rows in
    ascending order and of a row its query heads in ascending order. N: no less than the keys that the last row sees.
    `layer`: which of the entry's attend ops.
    """

    layer: int
    first: int
    rows: int
    sums: Float32


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step for S sequences, T tokens, R logit rows.

    `tokens` [T] sequence after sequence; `positions` [T] rotary coordinates; `starts` [S] index of each
    sequence's first token here; `counts` [S] its tokens here; `tables` [G, N] KV block ids, a row for each KV group of
    the module, sequence s at [table_offsets[s], table_offsets[s + 1]): one for each block of its indices, the null
    block where none of the step's tokens sees one; `logit_rows` [R] places in `tokens`; `sampling` [R] of SAMPLING;
    `want_logits`: also return all logits of these rows. `edits` of EDIT, row r's at [edit_offsets[r],
    edit_offsets[r + 1]); None: no row has any. `block_ops` [N, 4] (COPY, SCRUB, SAVE or LOAD, group, source, target):
    carried out in order before anything else; SAVE is from a block to a host slot, LOAD the opposite, and the targets
    of those in a run of one of the two differ. `trace`: also return a hash of what each op gave for each token;
    `timing`: also return how long each op took.

    `parents` [T]: for each token the place within its sequence's tokens of the one before it on its path, -1 being the
    last token before the step; None: every sequence is a chain, parent i - 1. K and V of token i are written to index
    start + i all the same; a token sees the indices below start and its path, as if that had been run alone, and its
    place on the path is its index to windows and slopes. Its rotary position is the caller's. A sequence that is no
    chain has at most MAX_TREE tokens. `columns`: at most MAX_COLUMNS wishes.

    `repeat`: up to so many steps, each row's token being its next input; every sequence then has one token here, whose
    logits are wanted, and `tables` have room for all of them. Ends early once a row has drawn one of its `stops`, row
    r's at [stop_offsets[r], stop_offsets[r + 1]), once the file descriptor `wake` is readable (-1: none), and before a
    step in which a row fails.
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
    edits: Records | None = None
    edit_offsets: Int32 | None = None
    block_ops: Int32 | None = None
    trace: bool = False
    parents: Int32 | None = None
    columns: tuple[ColumnSums, ...] = ()
    timing: bool = False
    repeat: int = 1
    stops: Int32 | None = None
    stop_offsets: Int32 | None = None
    wake: int = -1


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """[R] each: drawn tokens (or targets), their raw log-probabilities and ranks, faults (0, or why there is none).

    `top_ids`, `top_logprobs` [R, K], K = the largest `logprobs` of the step (entries behind a row's own number are
    -1 and -inf). `logits` [R, vocab] where asked for; `trace` uint64 [ops, T] where asked for, in the order of
    Executable.labels(): equal numbers mean equal bits (for the head: of the row's logits, 0 for tokens without any).
    `timing` uint64 [ops, 2] where asked for: nanoseconds of each op, and how much of that one thread waited for others.

    Of several `steps` everything is [steps * R] (`trace` [ops, steps * T]), step after step. `seconds`: in the backend,
    of which `moving` went into saving and loading blocks.
    """

    tokens: Int32
    logprobs: Float32
    ranks: Int32
    faults: Int32
    top_ids: Int32
    top_logprobs: Float32
    logits: Float32 | None = None
    trace: NDArray[np.uint64] | None = None
    timing: NDArray[np.uint64] | None = None
    steps: int = 1
    seconds: float = 0.0
    moving: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a backend runs on, for reports: `isa` and why no better one, worker threads and how they share the cores
    (`placing`), free memory in bytes.
    """

    name: str
    isa: str
    threads: int
    free_memory: int
    notes: tuple[str, ...] = ()
    placing: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine was measured to do at most: bytes read and FLOPs of products, per second. `told`: by what and
    when, for people. `busy`: others were at work, so that it may do more.
    """

    read_bytes_per_s: float
    flops_per_s: float
    told: str
    busy: bool = False


Choose = Callable[[Float32, np.void, Records], tuple[int, float, int, list[int], list[float]]]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Sizes and arithmetic of an Executable. `exact`: fp32 inputs and KV instead of bf16 ones. threads 0: all allowed.
    `packed_cache_bytes`: how much of packed weights may be kept on disk, of all models together; 0: nothing is.

    `choose(logits [vocab], record, edits) -> (token, logprob, rank, top_ids, top_logprobs)`: the mathematics of
    sampling, handed in for backends that have no native form of it; token -1: no token is left.
    """

    max_tokens: int
    max_rows: int
    exact: bool = False
    threads: int = 0
    entry: str = "target"
    choose: Choose | None = None
    packed_cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """Bytes: of the weights as they are held, and of what the largest step needs (values, scratch, logits)."""

    weights: int
    activations: int


class BlockOps(Protocol):
    """Work on KV blocks whose bytes only the backend understands. Groups count in the order of the module's states.

    Host slots are memory beside the blocks, numbered from 0 in each group: one holds a block's bytes as they are.
    """

    def copy(self, group: int, source: int, target: int) -> None: ...
    def scrub(self, group: int, block: int) -> None: ...
    def export_canonical(self, group: int, block: int, tokens: int) -> Float32:
        """fp32 [layers, 2, heads, tokens, dim] of the block's first tokens; keys and values equally wide."""
        ...

    def import_canonical(self, group: int, block: int, data: Float32) -> None:
        """The opposite; the block's other tokens become zero."""
        ...

    def reserve(self, slots: tuple[int, ...]) -> None:
        """Makes so many host slots of each group, in place of those there were; memory is touched as they are used.

        CapacityError where the system has no room.
        """
        ...

    def slot(self, group: int, slot: int) -> Bytes:
        """What a host slot holds [block_bytes], not copied: writing to it changes the slot. Not to be kept."""
        ...

    def content(self, group: int, block: int) -> Bytes:
        """What a block holds [block_bytes], perhaps not copied: not to be written to, nor kept beyond the next step."""
        ...

    def write(self, group: int, block: int, data: bytes) -> None:
        """What `content` told of a block becomes this one's, between two steps; ValueError for another size."""
        ...


class Executable(Protocol):
    """A compiled Program. Not thread-safe: one step at a time."""

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of one KV block of each group, in all layers of the group."""
        ...

    def allocate(self, blocks: tuple[int, ...]) -> None:
        """Makes room for this many KV blocks of each group; memory is touched only as blocks are used."""
        ...

    @property
    def memory(self) -> WorkingMemory:
        """What it holds beside the KV blocks."""
        ...

    def labels(self) -> tuple[str, ...]:
        """One name for each traced op, in order, such as "layer 3 attend"."""
        ...

    def run(self, inputs: StepInputs) -> StepOutputs: ...
    def blocks(self) -> BlockOps: ...
    def counters(self) -> dict[str, int]:
        """Totals since the start: steps, weight_bytes (packed: also weight_bytes:<packed format>), and per op kind
        flops:<kind>, read:<kind>, written:<kind>; where workers are measured, worker_ns: time of all of them in steps,
        and wait_ns: of that waiting for others; where whole tiles of several sequences are read once, shared_tiles: how
        many, of one layer and KV head each.
        """
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

    def rates(self, threads: int, working_set: int, *, rounded: bool = False) -> Rates | None:
        """Figures that are kept of this machine, for a step that reads `working_set` bytes; `rounded`: of products with
        rows of 8 bits. None where nobody measured it; nothing is measured here.
        """
        ...
