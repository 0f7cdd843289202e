"""Parts with faults that real engines had, for verify to find. It sees no switch."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import COPY, LOAD, SAVE, BlockOps, Executable, StepInputs, StepOutputs
from pelton.backends.passed_on import PassedOn
from pelton.backends.repeat import in_turn
from pelton.core.plan import StepPlan, StepResult
from pelton.kv.blocks import Blocks
from pelton.kv.group import KVGroup
from pelton.kv.node import Node
from pelton.kv.prefix import BlockKeys, PrefixTree
from pelton.runner.runner import Runner

BLOCK = 32


def carry_out(blocks: BlockOps, kind: int, group: int, source: int, target: int) -> None:
    """One operation, as a step does it."""
    if kind == COPY:
        blocks.copy(group, source, target)
    elif kind == SAVE:
        blocks.slot(group, target)[:] = blocks.content(group, source)
    elif kind == LOAD:
        blocks.content(group, target)[:] = blocks.slot(group, source)
    else:
        blocks.scrub(group, target)


class Double(PassedOn):
    """An Executable in another's clothes, to be changed in `before` and `after`."""

    def __init__(self, inner: Executable) -> None:
        super().__init__(inner)
        self.steps = 0  # in which the fault did something

    def run(self, inputs: StepInputs) -> StepOutputs:
        changed = self.before(inputs)
        outputs = self.inner.run(changed)
        self.after(inputs)
        return outputs

    def before(self, inputs: StepInputs) -> StepInputs:
        return inputs

    def after(self, inputs: StepInputs) -> None:
        pass

    def table(self, inputs: StepInputs, sequence: int) -> list[int]:
        return inputs.tables[0, inputs.table_offsets[sequence] : inputs.table_offsets[sequence + 1]].tolist()


class ShortTail(Double):
    """Off by one in the tail block: a piece that begins at a border finds the block before it one token short."""

    def before(self, inputs: StepInputs) -> StepInputs:
        if inputs.block_ops is not None:
            return inputs
        ops = self.blocks()
        for sequence, start in enumerate(inputs.starts.tolist()):
            if start and start % BLOCK == 0:
                block = self.table(inputs, sequence)[start // BLOCK - 1]
                ops.import_canonical(0, block, ops.export_canonical(0, block, BLOCK - 1))
                self.steps += 1
        return inputs


class NoCopy(Double):
    """Stale block reused: a block that was to be copied before it is written keeps what it held."""

    def before(self, inputs: StepInputs) -> StepInputs:
        if inputs.block_ops is None:
            return inputs
        copies = inputs.block_ops[:, 0] == COPY
        self.steps += int(copies.sum())
        return replace(inputs, block_ops=inputs.block_ops[~copies])


class OneNoise(Double):
    """A series draws all its tokens with the noise of the first."""

    def run(self, inputs: StepInputs) -> StepOutputs:
        if inputs.repeat == 1:
            return self.inner.run(inputs)
        self.steps += 1
        return in_turn(lambda step: self.inner.run(replace(step, sampling=inputs.sampling)), inputs)


class SwappedHeads(Double):
    """Copied blocks have their KV heads in another order."""

    def before(self, inputs: StepInputs) -> StepInputs:
        if inputs.block_ops is None:
            return inputs
        ops = self.blocks()
        for kind, group, source, target in inputs.block_ops.tolist():
            if kind == COPY:
                ops.import_canonical(group, target, ops.export_canonical(group, source, BLOCK)[:, :, ::-1].copy())
                self.steps += 1
            else:
                carry_out(ops, kind, group, source, target)
        return replace(inputs, block_ops=None)


class BatchDependent(Double):
    """A reduction in another order where sequences share a step: one number of a value vector is an ulp off."""

    def after(self, inputs: StepInputs) -> None:
        if len(inputs.starts) < 2:
            return
        ops = self.blocks()
        for sequence, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
            block, place = divmod(start + count - 1, BLOCK)
            held = ops.export_canonical(0, self.table(inputs, sequence)[block], place + 1)
            held[0, 1, 0, place, 0] *= 1 + 2.0**-7  # an ulp of bf16
            ops.import_canonical(0, self.table(inputs, sequence)[block], held)
            self.steps += 1


class OtherKernel(Double):
    """A batch-dependent kernel: steps with several sequences run on another executable, whose weights are an ulp off.

    KV stays in the first one's blocks: the other borrows them, as fp32, which holds both precisions exactly.
    """

    def __init__(self, inner: Executable, other: Executable) -> None:
        super().__init__(inner)
        self.other = other

    def run(self, inputs: StepInputs) -> StepOutputs:
        if len(inputs.starts) < 2:
            return self.inner.run(inputs)
        mine, theirs = self.inner.blocks(), self.other.blocks()
        for kind, group, source, target in [] if inputs.block_ops is None else inputs.block_ops.tolist():
            carry_out(mine, kind, group, source, target)
        blocks = set(inputs.tables[0].tolist())
        for block in blocks:
            theirs.import_canonical(0, block, mine.export_canonical(0, block, BLOCK))
        outputs = self.other.run(replace(inputs, block_ops=None))
        for block in blocks:
            mine.import_canonical(0, block, theirs.export_canonical(0, block, BLOCK))
        self.steps += 1
        return outputs


class SwappedHits(Double):
    """Blocks that a sequence finds computed have their KV heads in another order.

    A sequence that begins behind the start of its blocks, where none went on from the step before, has found them.
    """

    def __init__(self, inner: Executable) -> None:
        super().__init__(inner)
        self.reached: set[tuple[int, ...]] = set()

    def before(self, inputs: StepInputs) -> StepInputs:
        ops, went_on = self.blocks(), self.reached
        self.reached = set()
        for sequence, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
            table = self.table(inputs, sequence)
            self.reached.add((table[0], start + count))
            if start and start % BLOCK == 0 and (table[0], start) not in went_on:
                block = table[start // BLOCK - 1]
                ops.import_canonical(0, block, ops.export_canonical(0, block, BLOCK)[:, :, ::-1].copy())
                self.steps += 1
        return inputs


class RowNoise(Double):
    """What is drawn depends on the place in the step."""

    def before(self, inputs: StepInputs) -> StepInputs:
        sampling = inputs.sampling.copy()
        sampling["seed"] += np.arange(len(sampling), dtype=np.uint64)
        self.steps += len(sampling) > 1
        return replace(inputs, sampling=sampling)


class LostEdits(Double):
    """Rows named in `lost` have no edits."""

    def __init__(self, inner: Executable) -> None:
        super().__init__(inner)
        self.lost: list[int] = []

    def before(self, inputs: StepInputs) -> StepInputs:
        if inputs.edits is None or inputs.edit_offsets is None or not self.lost:
            return inputs
        counts = np.diff(inputs.edit_offsets)
        keep: NDArray[np.bool_] = np.ones(len(inputs.edits), bool)
        for row in self.lost:
            keep[inputs.edit_offsets[row] : inputs.edit_offsets[row + 1]] = False
            self.steps += int(counts[row] > 0)
            counts[row] = 0
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return replace(inputs, edits=inputs.edits[keep], edit_offsets=offsets)


def forgetful_runner(executable: LostEdits) -> type[Runner]:
    """A runner whose requests have lost their penalties once they were preempted."""

    class Forgetful(Runner):
        def __init__(self, *parts: object) -> None:
            super().__init__(*parts)  # type: ignore[arg-type]
            self.seen: set[str] = set()
            self.late: set[int] = set()

        def run(self, plan: StepPlan, meanwhile: Callable[[], None] | None = None) -> StepResult:
            for admission in plan.admitted:
                self.late.discard(admission.row)
                if admission.request_id in self.seen:
                    self.late.add(admission.row)
                self.seen.add(admission.request_id)
            executable.lost, logit_row = [], 0
            for row in plan.rows:
                logit_row += row.scored
                if row.sample:
                    if row.row in self.late:
                        executable.lost.append(logit_row)
                    logit_row += 1
            return super().run(plan, meanwhile)

    return Forgetful


class StaleTree(PrefixTree):
    """Evicted blocks are still found, if they are in use: with whatever somebody else has written there since."""

    found = 0

    def __init__(self, groups: Sequence[KVGroup], block_size: int) -> None:
        super().__init__(groups, block_size)
        self.stale: dict[tuple[bytes, ...], Node] = {}

    def match(self, keys: BlockKeys, most: int) -> list[Node]:
        nodes = super().match(keys, most)
        path = [keys.namespace, *(node.key for node in nodes)]
        while len(nodes) < most:
            path.append(keys.key(len(path) - 1))
            ghost = self.stale.get(tuple(path))
            if ghost is None or not self._groups[0].pool.references(ghost.blocks[0]):
                break
            StaleTree.found += 1
            nodes.append(ghost)
        return nodes

    def check(self) -> None:
        """Sees nothing: the answers are to tell."""

    def _forget(self, group: int, node: Node) -> None:
        path, above = [node.key], node.parent
        while above is not None:
            path.insert(0, above.key)
            above = above.parent
        ghost = self.stale[tuple(path)] = Node(node.key, 1, node.parent)
        ghost.blocks, ghost.computed, ghost.attached = list(node.blocks), node.computed, False
        super()._forget(group, node)


class StaleBlocks(Blocks):
    """Blocks over a StaleTree."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        if self.tree is not None:
            self.tree = StaleTree(self.groups, self.block_size)


class Torn(Double):
    """Breaks where sequences, or pieces of a prompt, are small."""

    def before(self, inputs: StepInputs) -> StepInputs:
        if len(inputs.starts) > 1 or (inputs.starts.any() and (inputs.counts > 1).any()):
            raise ValueError("torn")
        return inputs


class Once(Double):
    """One wrong seed, the first time that sequences share a step, and never again."""

    def before(self, inputs: StepInputs) -> StepInputs:
        if self.steps or len(inputs.starts) < 2 or not len(inputs.sampling):
            return inputs
        sampling = inputs.sampling.copy()
        sampling["logprobs"] = np.maximum(sampling["logprobs"], 0)
        sampling["seed"] += np.uint64(1)
        sampling["temperature"] = 5.0
        self.steps += 1
        return replace(inputs, sampling=sampling)
