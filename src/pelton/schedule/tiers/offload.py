"""Offload: blocks that the prefix tree gives up are saved to host slots, and a thread writes them to files from there.

Invariant: a slot is held for a block on its way, and given back when that is over, however it went.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pelton.core.plan import StateOp
from pelton.kv.blocks import Blocks
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.tiers.chain import Labelled, Name
from pelton.kv.tiers.host import HostSlots
from pelton.kv.tiers.worker import Carrier, Job

WRITE_SHARE = 4  # a fourth of the slots at most is for what goes to files


@dataclass(slots=True)
class _Figures:
    """Counts since the start: blocks on their way to files, and those given up for lack of room on it."""

    stored: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class _Save:
    """A block that the next step saves, or that one has saved."""

    block: Labelled
    op: StateOp


class Offload:
    """`figures` may be read. It is the `evicted` of the tree."""

    def __init__(self, blocks: Blocks, host: HostSlots, worker: Carrier) -> None:
        assert blocks.tree is not None, "without a tree nothing is evicted"
        self.figures = _Figures()
        self._tree = blocks.tree
        self._host = host
        self._worker = worker
        self._saves: dict[Name, _Save] = {}
        self._in_step: dict[Name, _Save] = {}
        self._unwanted: set[Name] = set()  # of these
        self._writing: set[tuple[int, int]] = set()  # slots, from when they are taken on
        self._busy = [0] * len(host.total)  # of them, of each group
        self._offered: set[Name] = set()  # by `keep`, since the last step
        blocks.tree.evicted = self.evicted

    def evicted(self, node: Node, group: int, block: int) -> None:
        """The tree gives up a block, which nobody writes to before the next step saves it."""
        if not node.computed or node.tail or node.parent is None:
            return  # files are of full blocks
        name = Name(node.digest, group)
        if name in self._saves or name in self._in_step or self._worker.has(name):
            return
        slot = None if self._worker.files.off else self._slot(group)
        if slot is None:
            self.figures.dropped += 1
            return
        labelled = Labelled(name, node.parent.digest, node.key)
        self._saves[name] = _Save(labelled, StateOp("save", block, slot, group))

    def take_saves(self) -> tuple[StateOp, ...]:
        """What the next step is to save."""
        self._in_step, self._saves = self._saves, {}
        return tuple(save.op for save in self._in_step.values())

    def settle(self) -> None:
        """The step that was planned last is over."""
        for name, save in self._in_step.items():
            if name in self._unwanted:
                self.over(save.op.group, save.op.target)
                continue
            self._worker.start(Job(False, (save.block,), (save.op.target,)))
            self.figures.stored += 1
        self._in_step = {}
        self._unwanted.clear()
        self._offered.clear()

    def reset(self) -> None:
        """Of what is on its way nothing is wanted any more; what a step is saving has its slot until that is over."""
        for save in self._saves.values():
            self.over(save.op.group, save.op.target)
        self._saves = {}
        self._unwanted.update(self._in_step)

    def broken(self) -> None:
        """It broke: what it was to save is not to be relied on, nor what still is to be saved."""
        for save in (*self._in_step.values(), *self._saves.values()):
            self.over(save.op.group, save.op.target)
        self._in_step, self._saves = {}, {}

    def spoil(self, places: Collection[tuple[int, int]]) -> None:
        """These blocks (group, block) get other content before the next step: what it was to save of them is lost."""
        for name, save in list(self._saves.items()):
            if (save.op.group, save.op.source) in places:
                del self._saves[name]
                self.over(save.op.group, save.op.target)

    def over(self, group: int, slot: int) -> None:
        """A block is in its file, or lost: its slot is free."""
        self._writing.remove((group, slot))
        self._busy[group] -= 1
        self._host.give_back([(group, slot)])

    @property
    def offered(self) -> int:
        """Blocks that `keep` has taken since the last step."""
        return len(self._offered)

    @property
    def writing(self) -> bool:
        """Whether blocks are on their way to files."""
        return bool(self._writing)

    def held(self) -> Iterator[tuple[int, int]]:
        """Slots (group, slot) in use."""
        return iter(self._writing)

    def kept(self) -> Iterator[tuple[Labelled, int]]:
        """Computed blocks of the tree that are in no file, as (what it is, block); those nearest to the root first."""
        level = [child for root in self._tree.roots() for child in root.children.values()]
        while level:
            for node in level:
                for group, block in enumerate(node.blocks):
                    name = Name(node.digest, group)
                    if block != NULL_BLOCK and node.computed and not node.tail and not self._worker.has(name):
                        assert node.parent is not None
                        yield Labelled(name, node.parent.digest, node.key), block
            level = [child for node in level for child in node.children.values()]

    def keep(self, most: int, copy: Callable[[int, int, int], None]) -> int:
        """Up to `most` such blocks go to files now; how many. `copy(group, block, slot)` copies one to a host slot.

        For an engine with nothing to do: nobody writes to the blocks meanwhile. Between two steps each block is taken
        once at most, so that what finds no room in the files is not written again and again.
        """
        kept = 0
        if self._worker.files.off:
            return kept
        for labelled, block in self.kept():
            if labelled.name in self._saves or labelled.name in self._offered:
                continue
            slot = self._slot(labelled.name.group) if kept < most else None
            if slot is None:
                break
            copy(labelled.name.group, block, slot)
            self._worker.start(Job(False, (labelled,), (slot,)))
            self._offered.add(labelled.name)
            kept += 1
        self.figures.stored += kept
        return kept

    def _slot(self, group: int) -> int | None:
        """A slot for a block on its way; None where too many are."""

        if self._busy[group] * WRITE_SHARE >= self._host.total[group]:
            return None
        slots = self._host.alloc(self._host.counts([group]))
        if slots is None:
            return None
        (slot,) = slots[group]
        self._writing.add((group, slot))
        self._busy[group] += 1
        return slot

    def push_out(self) -> None:
        """The tree gives up all that nobody uses."""
        for group in range(len(self._host.total)):
            for _ in range(self._tree.num_unused(group)):
                self._tree.evict(group)
