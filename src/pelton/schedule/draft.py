"""Draft: a plan in the making, what it has promised so far and the budget that is left. Decides nothing.

Invariant: a row enters once, with a place for each of its tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt

from pelton.core.plan import Admission, RowPlan, StateOp, StepPlan
from pelton.kv.group import Held
from pelton.kv.node import Node
from pelton.schedule.tracked import Start, Tracked


@dataclass(slots=True)
class Draft:
    """`budget`: work left, in tokens that see no others; a prompt's token at index i costs 1 + context_cost x i of it.

    `decodes`: running requests still to be planned that need one token. `cap`: most tokens of one request, 0 for any
    number. `most`: tokens of one request in the largest step. `copies`: of blocks, and loads. `entered`: nodes this
    step computes. `spent`: blocks to give back once nothing more is handed out.
    `scrubs`: (group, block) to be scrubbed, as far as they were taken note of early.
    """

    budget: int
    cap: int
    decodes: int
    most: int = 0
    context_cost: float = 0.0
    rows: list[RowPlan] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    new_blocks: dict[int, Held] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    copies: list[StateOp] = field(default_factory=list)
    entered: list[Node] = field(default_factory=list)
    spent: list[Held] = field(default_factory=list)
    scrubs: list[tuple[int, int]] = field(default_factory=list)
    repeat: int = 1

    def cut(self, start: int, remaining: int, share: int) -> int:
        """How many of its `remaining` tokens from index `start` a request computes if `share` of the budget may go to
        it: at least one, where share is, so that everybody gets on.
        """
        most = min(remaining, share, self.cap or share)
        if most < 2 or not self.context_cost:
            return most
        # The largest count with count x first + count (count - 1) / 2 x context_cost <= share.
        first, half = 1 + self.context_cost * start, self.context_cost / 2
        slope = first - half
        return max(1, min(most, int((sqrt(slope * slope + 4 * half * share) - slope) / (2 * half))))

    def _charge(self, start: int, count: int) -> int:
        """What `count` tokens from index `start` take from the budget. A single one is never refused for its context,
        and what decodes still need is theirs.
        """
        if count < 2 or not self.context_cost:
            return count
        work = count * (1 + self.context_cost * (start + (count - 1) / 2))
        return max(count, min(ceil(work), self.budget - self.decodes))

    def reserve(self, request: Tracked, count: int) -> bool:
        """Blocks for the request's next `count` tokens; False (nothing changed) where too few are available."""
        assert request.row is not None
        added = request.table.grow(request.computed + count)
        if added:
            self.new_blocks[request.row] = added
        return added is not None

    def extend(self, requests: Sequence[Tracked], steps: int) -> None:
        """The step becomes a series of so many, for which the blocks are there."""
        self.repeat = steps
        for request in requests:
            assert request.row is not None
            added = request.table.grow(request.computed + steps)
            assert added is not None, f"{request.request_id}: no blocks for {steps} steps"
            if added:
                before = self.new_blocks.get(request.row)
                both = zip(before, added, strict=True) if before else ()
                self.new_blocks[request.row] = tuple((*own, *more) for own, more in both) if before else added

    def admit(self, request: Tracked, start: Start, count: int) -> bool:
        """A request that has a row begins with what it found, already referenced, and takes blocks for `count` more."""
        assert request.row is not None
        request.table.adopt(start.blocks, start.mixed, start.node)
        request.computed = start.cached
        request.shared, request.copied = start.full, bool(start.source or start.loads)
        request.origin = start.origin
        restored = request.table.restore(start.cached, found=start.node is not None) if start.loads else ()
        if restored is None:
            return False
        loads = {group: iter(targets) for group, targets in enumerate(restored)}
        self.copies += [StateOp("load", slot, next(loads[group]), group) for group, slot in start.loads]
        if not self.reserve(request, count):
            return False
        blocks = request.table.blocks
        self.new_blocks[request.row] = blocks
        for group, source in enumerate(start.source):
            self.copies.append(StateOp("copy", source, blocks[group][start.full], group))
        self.admitted.append(Admission(request.row, request.request_id, start.cached, start.lookup))
        return True

    def place(self, request: Tracked, count: int) -> None:
        """The request computes `count` tokens; after the last known one a token is drawn. Filled blocks are shared."""
        assert request.row is not None
        start, asked = request.computed, request.asked
        end = start + count
        self.budget -= count if count < 2 else self._charge(start, count)
        scored = max(0, min(end, asked.prompt - 1) - start) if asked.scored else 0
        self.rows.append(RowPlan(request.row, start, count, 0, end == request.total, scored))
        if request.table.fills(end) and (keys := request.gives) is not None:
            self.entered += request.table.enter(keys, end)

    def assume(self, request: Tracked, start: int, count: int, total: int) -> bool:
        """As `reserve` and `place`, for a request that will have computed `start` of `total` known tokens by then; but
        nothing is shared yet. False (nothing changed): too few blocks are available.
        """
        assert request.row is not None
        asked, end = request.asked, start + count
        if end > request.table.capacity:
            added = request.table.grow(end)
            if added is None:
                return False
            self.new_blocks[request.row] = added
        self.budget -= count if count < 2 else self._charge(start, count)
        scored = max(0, min(end, asked.prompt - 1) - start) if asked.scored else 0
        self.rows.append(RowPlan(request.row, start, count, 0, end == total, scored))
        return True

    def plan(
        self, released: tuple[int, ...], scrubs: list[tuple[int, int]], saves: tuple[StateOp, ...] = ()
    ) -> StepPlan:
        """The step. Blocks are saved before anybody uses them again; those (group, block) to be scrubbed are scrubbed
        before anything is copied or loaded into them.
        """
        places = (*self.scrubs, *scrubs)
        ops = (*saves, *(StateOp("scrub", block, block, group) for group, block in places), *self.copies)
        rows, admitted = tuple(self.rows), tuple(self.admitted)
        return StepPlan(rows, admitted, released, self.new_blocks, ops, repeat=self.repeat)
