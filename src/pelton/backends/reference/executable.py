"""Runs an entry op by op in torch, as an Executable. Invariant: what a row gets depends on its own sequence alone."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from pelton.backends.backend import BlockOps, CompileOptions, Float32, StepInputs, StepOutputs
from pelton.backends.reference.kernels import Sequence, Step, execute
from pelton.backends.reference.pool import BLOCK, KVPool, ReferenceBlocks
from pelton.backends.reference.weights import Weights
from pelton.core.counters import Counters
from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.op import Op
from pelton.program.ops.head import GROUP
from pelton.program.values import StepShape

Choice = tuple[int, float, int, list[int], list[float]]
Choose = Callable[[Float32, np.void], Choice]
NO_TOKEN = 0  # what a row with a fault gets


def lowered(ops: Iterable[Op]) -> list[Op]:
    """The ops as primitives: each replaced by its lowering until none has one."""
    primitives: list[Op] = []
    for op in ops:
        parts = OPS.get(op.kind)().lower(op)
        primitives += [op] if parts is None else lowered(parts)
    return primitives


def most_likely(logits: Float32, record: np.void) -> Choice:
    """The choice where no other is handed in: the largest logit, the lower id among equals; rank 0 without logprobs."""
    logprobs = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()
    order = np.argsort(-logits, kind="stable")
    wanted = int(record["logprobs"])
    best = order[: max(0, wanted)]
    best = best[logits[best] > -np.inf]
    rank = 1 if wanted >= 0 else 0
    return int(order[0]), float(logprobs[order[0]]), rank, best.tolist(), logprobs[best].tolist()


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
        self._choose: Choose = options.choose or most_likely

    @property
    def block_bytes(self) -> int:
        return BLOCK * self._module.kv_token_bytes(self._kv_dtype.itemsize)

    def allocate(self, blocks: int) -> None:
        self._pools = {name: KVPool(state, blocks, self._kv_dtype) for name, state in self._module.states.items()}

    @torch.no_grad()
    def run(self, inputs: StepInputs) -> StepOutputs:
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
        (logits,) = execute(self._ops, step)
        self._count(StepShape(tuple((s.start, s.count) for s in step.sequences), len(inputs.logit_rows)))
        return self._outputs(logits.numpy(), inputs)

    def blocks(self) -> BlockOps:
        return ReferenceBlocks(self._pools)

    def counters(self) -> dict[str, int]:
        """steps, weight_bytes and flops, read, written per kind: by the ops' cost rules, nothing is measured here."""
        return {name: int(total) for name, total in self._counters.snapshot().items()}

    def close(self) -> None:
        self._pools = {}

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

    def _outputs(self, logits: Float32, inputs: StepInputs) -> StepOutputs:
        rows = len(logits)
        width = max(0, *inputs.sampling["logprobs"].tolist()) if rows else 0
        outputs = StepOutputs(
            tokens=np.full(rows, NO_TOKEN, np.int32),
            logprobs=np.full(rows, -np.inf, np.float32),
            ranks=np.zeros(rows, np.int32),
            faults=np.zeros(rows, np.int32),
            top_ids=np.full((rows, width), -1, np.int32),
            top_logprobs=np.full((rows, width), -np.inf, np.float32),
            logits=logits if inputs.want_logits else None,
        )
        for row, record in enumerate(inputs.sampling):
            # Hidden tokens may be at -infinity, but not all of them.
            if np.isnan(logits[row]).any() or logits[row].max() in (np.inf, -np.inf):
                outputs.faults[row] = 1
                continue
            token, outputs.logprobs[row], outputs.ranks[row], ids, logprobs = self._choose(logits[row], record)
            outputs.tokens[row] = token
            outputs.top_ids[row, : len(ids)] = ids
            outputs.top_logprobs[row, : len(ids)] = logprobs
        return outputs


def _sequences(inputs: StepInputs) -> tuple[Sequence, ...]:
    sequences, first = [], 0
    for number, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
        own = inputs.tables[inputs.table_offsets[number] : inputs.table_offsets[number + 1]]
        sequences.append(Sequence(first, count, start, torch.from_numpy(own.astype(np.int64))))
        first += count
    return tuple(sequences)
