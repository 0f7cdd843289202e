"""CpuExecutable: one step as one native call with the GIL released; and block operations on the native KV pool."""

import ml_dtypes
import numpy as np

from pelton.backends.backend import Bytes, CompileOptions, Float32, StepInputs, StepOutputs, WorkingMemory
from pelton.backends.cpu import _native
from pelton.backends.cpu.packed import Keeper
from pelton.backends.labels import labels
from pelton.backends.repeat import in_turn
from pelton.core.config import BLOCK_TOKENS
from pelton.core.errors import CapacityError
from pelton.program.module import Module
from pelton.program.states import State

MAX_BLOCKS = 2**26  # block ids and indices are 32-bit numbers in a step


class CpuExecutable:
    """See backends.backend.Executable."""

    def __init__(
        self, native: _native.Executable, module: Module, options: CompileOptions, keeper: Keeper | None = None
    ) -> None:
        self._native = native
        self._keeper = keeper
        self._module = module
        self._options = options
        self._labels = labels(module.entries[options.entry].ops)

    @property
    def block_bytes(self) -> tuple[int, ...]:
        return tuple(self._native.block_bytes)

    def allocate(self, blocks: tuple[int, ...]) -> None:
        """Raises CapacityError where the system has no room for so many."""
        remedy = "Set a smaller kv_cache_memory_bytes or num_blocks."
        for count in blocks:
            if count >= MAX_BLOCKS:
                raise CapacityError(f"{count} KV blocks are more than the {MAX_BLOCKS} supported.", remedy)
        try:
            self._native.allocate(list(blocks))
        except MemoryError as error:
            pools = zip(blocks, self.block_bytes, strict=True)
            wanted = " and ".join(f"{count} KV blocks of {size} bytes" for count, size in pools)
            raise CapacityError(f"No memory for {wanted}.", remedy) from error

    @property
    def memory(self) -> WorkingMemory:
        return WorkingMemory(self._native.held_bytes, self._native.working_bytes)

    def labels(self) -> tuple[str, ...]:
        return self._labels

    def run(self, inputs: StepInputs) -> StepOutputs:
        """Raises ValueError where the step is larger than what was compiled for, or its numbers lead outside of it."""
        if inputs.repeat > 1 and (inputs.trace or inputs.want_logits):
            return in_turn(self.run, inputs)
        rows, tokens = len(inputs.logit_rows), len(inputs.tokens)
        if tokens > self._options.max_tokens or rows > self._options.max_rows:
            limits = f"{self._options.max_tokens} tokens and {self._options.max_rows} rows"
            raise ValueError(f"a step of {tokens} tokens and {rows} logit rows, compiled for {limits}")
        top = max(0, int(inputs.sampling["logprobs"].max())) if rows else 0
        all_rows = inputs.repeat * rows
        ints = np.zeros((3, all_rows), np.int32)
        logprobs = np.zeros(all_rows, np.float32)
        top_ids = np.empty((all_rows, top), np.int32)
        top_logprobs = np.empty((all_rows, top), np.float32)
        logits = np.empty((rows, self._module.vocab), np.float32) if inputs.want_logits else None
        edits = None if inputs.edits is None else inputs.edits.view(np.uint8)
        trace = np.zeros((len(self._labels), tokens), np.uint64) if inputs.trace else None
        timing = np.zeros((len(self._labels), 2), np.uint64) if inputs.timing else None
        wanted = [(wish.layer, wish.first, wish.rows) for wish in inputs.columns]
        columns = np.array(wanted, np.int32).reshape(-1) if wanted else None
        moved = self._native.moved_ns
        steps, seconds = self._native.run(
            inputs.tokens, inputs.positions, inputs.starts, inputs.counts, inputs.tables, inputs.table_offsets,
            inputs.logit_rows, inputs.sampling.view(np.uint8), ints, logprobs, top_ids, top_logprobs, logits,
            edits, inputs.edit_offsets, inputs.block_ops, trace, inputs.parents, columns,
            [wish.sums for wish in inputs.columns],
            timing, inputs.repeat, inputs.stops, inputs.stop_offsets, inputs.wake,
        )  # fmt: skip
        if steps < inputs.repeat:
            drawn = steps * rows
            ints, logprobs = ints[:, :drawn], logprobs[:drawn]
            top_ids, top_logprobs = top_ids[:drawn], top_logprobs[:drawn]
        return StepOutputs(
            tokens=ints[0],
            logprobs=logprobs,
            ranks=ints[1],
            faults=ints[2],
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            logits=logits,
            trace=trace,
            timing=timing,
            steps=steps,
            seconds=seconds,
            moving=1e-9 * (self._native.moved_ns - moved),
        )

    def blocks(self) -> "CpuBlockOps":
        return CpuBlockOps(self._native, self._module, self._options.exact)

    def counters(self) -> dict[str, int]:
        return self._native.counters()

    def close(self) -> None:
        """Frees weights, KV and threads; the executable cannot be used afterwards."""
        if self._keeper is not None:
            self._keeper.close()
        del self._native


class CpuBlockOps:
    """Block operations.

    Within a group's block: layer after layer, head after head, K then V (native/kernels.h).
    """

    def __init__(self, native: _native.Executable, module: Module, exact: bool) -> None:
        self._native = native
        self._states = tuple(module.states.values())
        self._exact = exact

    def copy(self, group: int, source: int, target: int) -> None:
        self._native.copy_block(group, source, target)

    def scrub(self, group: int, block: int) -> None:
        self._native.scrub_block(group, block)

    def reserve(self, slots: tuple[int, ...]) -> None:
        """Raises CapacityError where the system has no room for so many."""
        try:
            self._native.reserve(list(slots))
        except MemoryError as error:
            sizes = zip(slots, self._native.block_bytes, strict=True)
            wanted = " and ".join(f"{count} host slots of {size} bytes" for count, size in sizes)
            raise CapacityError(f"No memory for {wanted}.", "Set a smaller swap_space_bytes.") from error

    def slot(self, group: int, slot: int) -> Bytes:
        return self._native.slot_view(group, slot)

    def content(self, group: int, block: int) -> Bytes:
        return self._native.block_view(group, block)

    def write(self, group: int, block: int, data: bytes) -> None:
        self._native.write_block(group, block, data)

    def export_canonical(self, group: int, block: int, tokens: int) -> Float32:
        """fp32 [layers, 2, heads, tokens, dim]; key and value widths must be equal."""
        return _unpack(self._states[group], self._native.read_block(group, block), self._exact)[..., :tokens, :]

    def import_canonical(self, group: int, block: int, data: Float32) -> None:
        """Writes what export_canonical gave; tokens behind its end become zero."""
        self._native.write_block(group, block, _pack(self._states[group], data, self._exact))


def _unpack(state: State, raw: bytes, exact: bool) -> Float32:
    """A group's bytes -> [layers, 2, heads, 32, dim]."""
    heads, dim = state.spec.heads, state.spec.key_dim
    kind: type = np.float32 if exact else ml_dtypes.bfloat16
    both = np.frombuffer(raw, kind).astype(np.float32).reshape(state.layers, heads, 2, BLOCK_TOKENS * dim)
    keys, values = both[:, :, 0], both[:, :, 1]
    if exact:
        keys = keys.reshape(state.layers, heads, dim, BLOCK_TOKENS).swapaxes(2, 3)
        values = values.reshape(state.layers, heads, BLOCK_TOKENS, dim)
    else:
        pairs = keys.reshape(state.layers, heads, dim // 2, BLOCK_TOKENS, 2)
        keys = pairs.transpose(0, 1, 3, 2, 4).reshape(state.layers, heads, BLOCK_TOKENS, dim)
        pairs = values.reshape(state.layers, heads, BLOCK_TOKENS // 2, dim, 2)
        values = pairs.swapaxes(3, 4).reshape(state.layers, heads, BLOCK_TOKENS, dim)
    return np.ascontiguousarray(np.stack([keys, values], axis=1))


def _pack(state: State, data: Float32, exact: bool) -> bytes:
    """The inverse of _unpack."""
    layers, _, heads, tokens, dim = data.shape
    full = np.zeros((layers, 2, heads, BLOCK_TOKENS, dim), np.float32)
    full[..., :tokens, :] = data
    keys, values = full[:, 0], full[:, 1]
    if exact:
        packed = [keys.swapaxes(2, 3), values]
    else:
        packed = [
            keys.reshape(layers, heads, BLOCK_TOKENS, dim // 2, 2).transpose(0, 1, 3, 2, 4),
            values.reshape(layers, heads, BLOCK_TOKENS // 2, 2, dim).swapaxes(3, 4),
        ]
    both = np.stack([part.reshape(layers, heads, -1) for part in packed], axis=2)
    return both.astype(np.float32 if exact else ml_dtypes.bfloat16).tobytes()
