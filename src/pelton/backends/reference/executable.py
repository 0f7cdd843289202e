"""Runs an entry op by op in torch, as an Executable. Invariant: what a row gets depends on its own sequence alone."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from pelton.backends.backend import (
    COPY,
    EDIT,
    FAULT_BAD_LOGITS,
    FAULT_NO_TOKEN,
    LOAD,
    SAVE,
    BlockOps,
    Choose,
    CompileOptions,
    Float32,
    Records,
    StepInputs,
    StepOutputs,
    WorkingMemory,
)
from pelton.backends.labels import labels
from pelton.backends.reference.attention import add_columns
from pelton.backends.reference.choice import most_likely, scored
from pelton.backends.reference.kernels import execute
from pelton.backends.reference.pool import BLOCK, KVPool, ReferenceBlocks
from pelton.backends.reference.step import Sequence, Step, paths_of
from pelton.backends.reference.trace import Hashes, Tracer
from pelton.backends.reference.weights import Weights
from pelton.backends.repeat import in_turn
from pelton.core.clock import SystemClock
from pelton.core.counters import Counters
from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.op import Op
from pelton.program.ops.head import GROUP
from pelton.program.passes.place import place
from pelton.program.values import StepShape

NO_TOKEN = 0  # what a row with a fault gets
NO_EDITS: Records = np.zeros(0, EDIT)


def lowered(ops: Iterable[Op]) -> list[Op]:
    """The ops as primitives: each replaced by its lowering until none has one."""
    primitives: list[Op] = []
    for op in ops:
        parts = OPS.get(op.kind)().lower(op)
        primitives += [op] if parts is None else lowered(parts)
    return primitives


class ReferenceExecutable:
    """One entry of a Module over paged KV memory."""

    def __init__(self, module: Module, options: CompileOptions) -> None:
        self._module = module
        self._options = options
        self._entry = module.entries[options.entry]
        self._ops = lowered(self._entry.ops)
        self._weights = Weights(module, options.exact)
        self._kv_dtype = torch.float32 if options.exact else torch.bfloat16
        self._pools: dict[str, KVPool] = {}
        self._counters = Counters()
        self._clock = SystemClock()
        self._choose: Choose = options.choose or most_likely

    @property
    def block_bytes(self) -> tuple[int, ...]:
        states = self._module.states.values()
        return tuple(BLOCK * state.layers * state.spec.token_bytes(self._kv_dtype.itemsize) for state in states)

    def allocate(self, blocks: tuple[int, ...]) -> None:
        states = self._module.states.values()
        self._pools = {
            state.name: KVPool(state, group, count, self._kv_dtype)
            for group, (state, count) in enumerate(zip(states, blocks, strict=True))
        }

    @property
    def memory(self) -> WorkingMemory:
        """An estimate: torch holds all weights in fp32 once they were used, every value of a step, all its logits."""
        rows = self._options.max_rows * self._module.vocab
        weights = sum(storage.rows * storage.cols for storage in self._module.storages.values())
        return WorkingMemory(4 * weights, 4 * (place(self._entry, self._options.max_tokens).size + rows))

    def labels(self) -> tuple[str, ...]:
        return labels(self._ops)

    def run(self, inputs: StepInputs) -> StepOutputs:
        return in_turn(self._step, inputs) if inputs.repeat > 1 else self._step(inputs)

    @torch.no_grad()
    def _step(self, inputs: StepInputs) -> StepOutputs:
        began = self._clock.now()
        moving = self._operate(inputs)
        step = Step(
            weights=self._weights,
            pools=self._pools,
            sequences=_sequences(inputs),
            logit_rows=torch.from_numpy(inputs.logit_rows.astype(np.int64)),
            exact=self._options.exact,
            values={
                "ids": torch.from_numpy(inputs.tokens.astype(np.int64)),
                "positions": torch.from_numpy(inputs.positions.astype(np.int64)),
            },
        )
        tracer = Tracer(len(self._ops), step) if inputs.trace else None
        (logits,) = execute(self._ops, step, tracer)
        for wish in inputs.columns:
            add_columns(wish, [op for op in self._ops if op.kind == "attend"][wish.layer], step)
        self._count(StepShape(tuple((s.start, s.count) for s in step.sequences), len(inputs.logit_rows)))
        outputs = self._outputs(logits.numpy(), inputs, tracer.hashes if tracer else None)
        return replace(outputs, seconds=self._clock.now() - began, moving=moving)

    def blocks(self) -> BlockOps:
        return self._blocks()

    def _blocks(self) -> ReferenceBlocks:
        return ReferenceBlocks(tuple(self._pools.values()))

    def counters(self) -> dict[str, int]:
        """steps, weight_bytes and flops, read, written per kind: by the ops' cost rules, nothing is measured here."""
        return {name: int(total) for name, total in self._counters.snapshot().items()}

    def close(self) -> None:
        self._pools = {}

    def _operate(self, inputs: StepInputs) -> float:
        """Carries out the block operations; how many seconds of that went into saving and loading."""
        blocks, moving = self._blocks(), 0.0
        for kind, group, source, target in [] if inputs.block_ops is None else inputs.block_ops.tolist():
            began = self._clock.now()
            if kind == COPY:
                blocks.copy(group, source, target)
            elif kind == SAVE:
                blocks.save(group, source, target)
            elif kind == LOAD:
                blocks.load(group, source, target)
            else:
                blocks.scrub(group, target)
            if kind in (SAVE, LOAD):
                moving += self._clock.now() - began
        return moving

    def _count(self, shape: StepShape) -> None:
        tables = self._module.tables(self._entry.name, exact=self._kv_dtype.itemsize == 4)
        self._counters.add("steps")
        for op in self._entry.ops:
            cost = OPS.get(op.kind)().cost(op, tables, shape)
            self._counters.add(f"flops:{op.kind}", cost.flops)
            self._counters.add(f"read:{op.kind}", cost.read)
            self._counters.add(f"written:{op.kind}", cost.written)
            if op.kind in ("linear", "head"):
                passes = -(-shape.logit_rows // GROUP) if op.kind == "head" else 1
                self._counters.add("weight_bytes", passes * sum(tables.storage(name).nbytes for name in op.weights))

    def _outputs(self, logits: Float32, inputs: StepInputs, trace: Hashes | None) -> StepOutputs:
        rows = len(logits)
        width = max(0, *inputs.sampling["logprobs"].tolist()) if rows else 0
        outputs = StepOutputs(
            tokens=np.full(rows, NO_TOKEN, np.int32),
            logprobs=np.zeros(rows, np.float32),
            ranks=np.zeros(rows, np.int32),
            faults=np.zeros(rows, np.int32),
            top_ids=np.full((rows, width), -1, np.int32),
            top_logprobs=np.full((rows, width), -np.inf, np.float32),
            logits=logits if inputs.want_logits else None,
            trace=trace,
        )
        for row, record in enumerate(inputs.sampling):
            # Hidden tokens may be at -infinity, but not all of them.
            if np.isnan(logits[row]).any() or logits[row].max() in (np.inf, -np.inf):
                outputs.faults[row] = FAULT_BAD_LOGITS
                continue
            if record["target"] >= 0:
                choice = scored(logits[row], int(record["target"]), int(record["logprobs"]))
            else:
                choice = self._choose(logits[row], record, _edits(inputs, row))
            token, logprob, rank, ids, logprobs = choice
            if token < 0:
                outputs.faults[row] = FAULT_NO_TOKEN
                continue
            outputs.tokens[row], outputs.logprobs[row], outputs.ranks[row] = token, logprob, rank
            outputs.top_ids[row, : len(ids)] = ids
            outputs.top_logprobs[row, : len(ids)] = logprobs
        return outputs


def _edits(inputs: StepInputs, row: int) -> Records:
    if inputs.edits is None or inputs.edit_offsets is None:
        return NO_EDITS
    return inputs.edits[inputs.edit_offsets[row] : inputs.edit_offsets[row + 1]]


def _sequences(inputs: StepInputs) -> tuple[Sequence, ...]:
    sequences, first = [], 0
    for number, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
        own = inputs.tables[:, inputs.table_offsets[number] : inputs.table_offsets[number + 1]]
        paths = None if inputs.parents is None else paths_of(inputs.parents[first : first + count].tolist())
        sequences.append(Sequence(first, count, start, torch.from_numpy(own.astype(np.int64)), paths))
        first += count
    return tuple(sequences)
