"""Swap: what a preempted request had computed waits in host slots, where copying it twice is cheaper than computing it.

It names blocks and slots; the copying is done by the next step. Invariant: a slot is held for a request that waits, or
until the step is over that loads it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pelton.core.config import CacheSection
from pelton.core.plan import StateOp, StepPlan
from pelton.kv.blocks import Blocks
from pelton.kv.group import Held, KVGroup, first_block
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.tiers.host import HostSlots
from pelton.schedule.tracked import Start, Tracked

COPY_RATE = 2e9  # bytes in a second, until it is measured; a slow machine's
DISK_RATE = 3e8  # likewise, of files that are read and checked
KEPT = 0.7  # of a rate, with each step that tells another
MOST_ROWS = 0.5  # of a step's tokens, for it to say how fast prompts are computed


class Rates:
    """Measured speeds: `prefill` tokens of prompts in a second (0: not known yet); bytes in a second: `copy`, between
    blocks and host slots, and `disk`, read from files and checked. They stay as they are unless it `learns`.

    `groups`: of the KV blocks that are moved.
    """

    def __init__(self, groups: Sequence[KVGroup], copy: float = COPY_RATE) -> None:
        self.learns = True
        self.prefill = 0.0
        self.copy = copy
        self.disk = DISK_RATE
        self._groups = tuple(groups)

    def saw(self, plan: StepPlan, seconds: float, moving: float) -> None:
        """A step took so long, `moving` of it for saving and loading; a mostly decoding one says nothing of prompts."""
        if not self.learns:
            return
        tokens, computing = plan.num_tokens, seconds - moving
        if computing > 0 and len(plan.rows) <= MOST_ROWS * tokens:
            self.prefill = _mean(self.prefill, tokens / computing)
        moved = self.bytes(op.group for op in plan.state_ops if op.kind in ("save", "load"))
        if moving > 0 and moved:
            self.copy = _mean(self.copy, moved / moving)

    def read(self, size: int, seconds: float) -> None:
        """So many bytes came from files in so many seconds, not counting what they waited for their turn."""
        if self.learns and size and seconds > 0:
            self.disk = _mean(self.disk, size / seconds)

    def bytes(self, groups: Iterable[int]) -> int:
        """Of a block of each of these KV groups."""
        return sum(self._groups[group].block_bytes for group in groups)


def _each(counts: Sequence[int]) -> Iterator[int]:
    """Each group as often as is counted."""
    return (group for group, count in enumerate(counts) for _ in range(count))


def _mean(known: float, seen: float) -> float:
    return KEPT * known + (1 - KEPT) * seen if known else seen


@dataclass(frozen=True, slots=True)
class Saved:
    """The first `computed` tokens of a request: `kept` blocks of them in the tree, when they were saved, and what
    stands behind those in `slots`: of each group those of its last entries.
    """

    computed: int
    kept: int
    slots: Held


@dataclass(slots=True)
class _Figures:
    """Counts since the start. `swapped` and `recomputed`: of preempted requests; `lost`: swapped ones whose kept
    blocks were gone, and that were computed again after all.
    """

    swapped: int = 0
    recomputed: int = 0
    lost: int = 0
    saved: int = 0
    loaded: int = 0


class Swap:
    """`figures` may be read."""

    def __init__(self, blocks: Blocks, host: HostSlots, cache: CacheSection, rates: Rates) -> None:
        self.figures = _Figures()
        self._blocks = blocks
        self._host = host
        self._mode = cache.preemption_mode
        self._limit = cache.swap_space_bytes
        self._rates = rates
        self._saved: dict[Tracked, Saved] = {}
        self._pending: dict[Tracked, list[StateOp]] = {}
        self._spent: list[Held] = []

    @property
    def waiting(self) -> int:
        """Requests whose blocks wait in host slots."""
        return len(self._saved)

    def out(self, request: Tracked) -> bool:
        """What a request that is about to lose its blocks has computed is saved; False: it is to be computed again."""
        saved = self._plan_out(request)
        if saved is None:
            self.figures.recomputed += 1
            return False
        self._saved[request] = saved
        ops = self._pending[request] = []
        entries = self._blocks.needed(saved.computed)
        for group, slots in enumerate(saved.slots):
            held = request.table.blocks[group][entries - len(slots) : entries]
            ops += [StateOp("save", block, slot, group) for block, slot in zip(held, slots, strict=True)]
        self.figures.swapped += 1
        return True

    def _plan_out(self, request: Tracked) -> Saved | None:
        """Slots for what is worth to be saved."""
        if self._mode == "recompute" or not any(self._host.total) or not request.computed:
            return None
        computed, size = request.computed, self._blocks.block_size
        kept = self._kept(request)
        entries = self._blocks.needed(computed)
        firsts = [max(kept, first_block(group.window, computed, size)) for group in self._blocks.groups]
        counts = [max(0, entries - first) for first in firsts]
        if not any(counts) or (self._mode == "auto" and not self._pays(computed - kept * size, counts)):
            return None
        if self._limit is not None:  # there may be more slots, for files
            held = self._rates.bytes(group for group, _ in self.held())
            if held + self._rates.bytes(_each(counts)) > self._limit:
                return None
        slots = self._host.alloc(counts)
        return None if slots is None else Saved(computed, kept, slots)

    def _kept(self, request: Tracked) -> int:
        """Leading blocks that others hold too, so that they stay in the tree. With windows none: of what is behind one
        the tree soon has nothing, and without it finds no prefix.
        """
        tree, table = self._blocks.tree, request.table
        if tree is None or request.takes is None or any(group.window for group in self._blocks.groups):
            return 0
        kept = 0
        for block in table.blocks[0][: min(table.depth, request.computed // self._blocks.block_size)]:
            node = tree.at(0, block)
            if node is None or not node.computed or self._blocks.alone(0, (block,)):
                break
            kept += 1
        return kept

    def _pays(self, tokens: int, counts: Sequence[int]) -> bool:
        """Whether copying there and back takes less time than computing so many tokens, as far as speeds are known."""
        if not self._rates.prefill:
            return True
        return 2 * self._rates.bytes(_each(counts)) / self._rates.copy < tokens / self._rates.prefill

    def start(self, request: Tracked) -> Start | None:
        """With what a request goes on whose blocks were saved; None where none were, or what they lean on is gone, or
        the tree has as much: then nothing is saved of it any more.
        """
        saved = self._saved.get(request)
        if saved is None:
            return None
        tree, keys, size = self._blocks.tree, request.takes, self._blocks.block_size
        nodes = tree.match(keys, (request.total - 1) // size) if tree is not None and keys is not None else []
        if len(nodes) < saved.kept or len(nodes) * size >= saved.computed:
            self.figures.lost += len(nodes) < saved.kept
            self.forget(request)
            return None
        entries = self._blocks.needed(saved.computed)
        loads = []
        for number, (group, slots) in enumerate(zip(self._blocks.groups, saved.slots, strict=True)):
            wanted = entries - max(len(nodes), min(entries, first_block(group.window, saved.computed, size)))
            loads += [(number, slot) for slot in slots[len(slots) - wanted :]]
        assert loads, f"{request.request_id}: nothing to load of {saved}"
        return Start(self._held(nodes, saved.computed), saved.computed, loads=tuple(loads))

    def _held(self, nodes: Sequence[Node], computed: int) -> Held:
        """The nodes' blocks, of each group those that the token at index `computed` sees."""
        held = []
        for number, group in enumerate(self._blocks.groups):
            first = first_block(group.window, computed, self._blocks.block_size)
            held.append(tuple(NULL_BLOCK if i < first else node.blocks[number] for i, node in enumerate(nodes)))
        return tuple(held)

    def began(self, request: Tracked, start: Start) -> None:
        """A request goes on: its slots are free once the step that loads them is over."""
        saved = self._saved.pop(request, None)
        if saved is not None:
            self._spent.append(saved.slots)
            self.figures.loaded += len(start.loads)

    def forget(self, request: Tracked) -> None:
        """Nothing of the request is wanted any more."""
        self._pending.pop(request, None)
        saved = self._saved.pop(request, None)
        if saved is not None:
            self._host.release(saved.slots)

    def take_saves(self) -> tuple[StateOp, ...]:
        """What the next step is to save: before all else, as the blocks may be others' by now."""
        ops = tuple(op for ops in self._pending.values() for op in ops)
        self._pending.clear()
        self.figures.saved += len(ops)
        return ops

    def settle(self) -> None:
        """The step that was planned last is over."""
        for slots in self._spent:
            self._host.release(slots)
        self._spent.clear()

    def broken(self, ops: Iterable[StateOp]) -> None:
        """A step with these operations broke: what it was to save may not be there, and what is still to be saved may
        have been computed by it.
        """
        targets = {(op.group, op.target) for op in ops if op.kind == "save"}
        for request, saved in list(self._saved.items()):
            slots = {(group, slot) for group, own in enumerate(saved.slots) for slot in own}
            if request in self._pending or slots & targets:
                self.forget(request)

    def waiters(self) -> Iterable[Tracked]:
        """Requests whose blocks wait in host slots."""
        return self._saved.keys()

    def held(self) -> Iterator[tuple[int, int]]:
        """Slots (group, slot) in use."""
        for slots in (*(saved.slots for saved in self._saved.values()), *self._spent):
            yield from ((group, slot) for group, own in enumerate(slots) for slot in own)


def slots_of(swap: Swap, request: Tracked) -> int:
    """Host slots of all groups in which a request waits."""
    saved = swap._saved.get(request)
    return 0 if saved is None else sum(map(len, saved.slots))


def spoil(swap: Swap, places: Collection[tuple[int, int]]) -> None:
    """These blocks (group, block) get other content before the next step: who was to be saved from one is computed."""
    for request, ops in list(swap._pending.items()):
        if any((op.group, op.source) in places for op in ops):
            swap.forget(request)
