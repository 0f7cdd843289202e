"""Ahead: the next step is planned while one runs, as if that one were over and all in it who can go on did.

Only what running requests compute next is planned so, and blocks for it; what a step fills enters the tree, and who
waits begins, once the results are there. Knows no tokens. Invariant: a plan that is handed out has the rows that would
be planned then without it; of one that is not, nothing is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pelton.core.config import ScheduleSection
from pelton.core.plan import RowPlan, StepPlan
from pelton.kv.blocks import Blocks
from pelton.schedule.draft import Draft
from pelton.schedule.places import Places
from pelton.schedule.planner import Planner
from pelton.schedule.tracked import Tracked


@dataclass(slots=True)
class _Made:
    """A plan ahead. `requests` and `totals` (tokens that will be known of each) go with the rows of the `draft`, which
    had a `budget` at first.

    `ending`: who cannot go on. `filling`: who fills a block that could enter the tree, and by how many tokens.
    `prompts`: somebody has more than one token to compute, `cut_short`: and gets less than all.
    """

    draft: Draft
    budget: int
    ending: list[Tracked]
    requests: list[Tracked] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    filling: list[tuple[Tracked, int]] = field(default_factory=list)
    prompts: bool = False
    cut_short: bool = False


@dataclass(slots=True)
class _Figures:
    """Counts since the start: plans ahead that became steps, of which some had lost rows; and those taken back."""

    used: int = 0
    trimmed: int = 0
    taken_back: int = 0


class Ahead:
    """`make` while a step runs, `take` when it is committed. `max_len` as in Scheduler. `figures` may be read."""

    def __init__(self, planner: Planner, places: Places, blocks: Blocks, max_len: int) -> None:
        self.figures = _Figures()
        self._planner = planner
        self._places = places
        self._blocks = blocks
        self._max_len = max_len
        self._made: _Made | None = None

    def make(self, plan: StepPlan, limits: ScheduleSection) -> None:
        """Plans the step behind `plan`, which is the open one and runs. Nothing where blocks lack, and behind a series,
        of which nobody knows how many steps it will have.
        """
        assert self._made is None, "two plans ahead"
        if plan.repeat > 1:
            return
        guesses, ending = self._guess(plan)
        draft = self._planner.begin(limits, [total - computed for _, computed, total in guesses])
        made = _Made(draft, draft.budget, ending)
        for request, computed, total in guesses:
            remaining = total - computed
            decodes = remaining == 1
            draft.decodes -= decodes
            count = draft.cut(computed, remaining, draft.budget if decodes else draft.budget - draft.decodes)
            made.prompts |= not decodes
            made.cut_short |= count < remaining
            if not count:
                continue
            if not draft.assume(request, computed, count, total):
                self._undo(made)
                return
            made.requests.append(request)
            made.totals.append(total)
            if request.table.fills(computed + count):
                made.filling.append((request, computed + count))
        assert draft.decodes == 0 <= draft.budget, f"{draft.decodes} decodes left over, budget {draft.budget}"
        self._made = made if made.requests else None

    def take(self, limits: ScheduleSection) -> Draft | None:
        """The rows of the step that was planned ahead, without those of requests that are over or lost their place;
        None: it is to be planned now, as there is none, or not one that would be planned now. Behind a step that broke
        nobody has a place any more.
        """
        made, self._made = self._made, None
        if made is None:
            return None
        draft, gone = made.draft, list[int]()
        fits = all(request.row is None for request in made.ending)
        for place, (request, row, total) in enumerate(zip(made.requests, draft.rows, made.totals, strict=True)):
            if request.row != row.row:
                gone.append(place)
            elif request.total != total or request.computed != row.start:
                fits = False
        running = self._places.running if made.prompts else ()
        now = self._planner.begin(limits, [request.total - request.computed for request in running])
        fits &= now.budget == made.budget and len(gone) < len(draft.rows)
        if made.prompts:
            fits &= (now.cap, now.context_cost) == (draft.cap, draft.context_cost)
        # Where somebody is cut short, what others leave is theirs.
        fits &= not gone or not (made.cut_short or any(draft.rows[place].count > 1 for place in gone))
        if not fits:
            self._undo(made)
            self.figures.taken_back += 1
            return None
        if gone:
            self._trim(made, gone)
        draft.cap, draft.most, draft.context_cost = now.cap, now.most, now.context_cost
        for request, end in made.filling:
            if request.row is not None and request.table.fills(end) and (keys := request.gives) is not None:
                draft.entered += request.table.enter(keys, end)
        self.figures.used += 1
        return draft

    def totals(self) -> dict[str, int]:
        """What EngineStats has of this, by its fields' names."""
        figures = self.figures
        return {
            "plans_ahead_total": figures.used,
            "plans_trimmed_total": figures.trimmed,
            "plans_taken_back_total": figures.taken_back,
        }

    def _guess(self, plan: StepPlan) -> tuple[list[tuple[Tracked, int, int]], list[Tracked]]:
        """Who goes on behind the plan, with its computed and known tokens then; and who is over, by their number."""
        rows: dict[int | None, RowPlan] = {row.row: row for row in plan.rows}
        going, ending = list[tuple[Tracked, int, int]](), list[Tracked]()
        for request in self._places.running:
            row, computed, total = rows.get(request.row), request.computed, request.total
            if row is not None:
                computed = row.start + row.count
                if row.sample:
                    total += 1
                    asked = request.asked
                    if total - asked.prompt >= min(asked.max_tokens, self._max_len - asked.prompt):
                        ending.append(request)
                        continue
            going.append((request, computed, total))
        return going, ending

    def _trim(self, made: _Made, gone: Sequence[int]) -> None:
        """Without the rows at these places, whose blocks are given back already."""
        draft = made.draft
        for place in reversed(gone):
            row = draft.rows.pop(place)
            draft.new_blocks.pop(row.row, None)
            draft.budget += 1
        self.figures.trimmed += 1
        if scrubs := self._blocks.take_scrubs():
            tables = draft.new_blocks.values()
            kept = {(group, block) for held in tables for group, blocks in enumerate(held) for block in blocks}
            draft.scrubs += [place for place in scrubs if place in kept]
            self._scrub_later([place for place in scrubs if place not in kept])

    def _undo(self, made: _Made) -> None:
        """All blocks are given back, those that were to be scrubbed to be scrubbed another time."""
        for request, row in zip(reversed(made.requests), reversed(made.draft.rows), strict=True):
            added = made.draft.new_blocks.get(row.row)
            if added and request.row == row.row:
                request.table.release(request.table.num_blocks - len(added[0]))
        self._scrub_later(self._blocks.take_scrubs())

    def _scrub_later(self, places: Sequence[tuple[int, int]]) -> None:
        """Whenever they are handed out; one that somebody has since then was overwritten for him."""
        groups = self._blocks.groups
        self._blocks.poison((group, block) for group, block in places if not groups[group].pool.references(block))
