"""Planner: fills a draft. Running requests first, in rank order; then waiting ones, while rows, budget and blocks last.

Every request has `remaining` tokens to compute; there is no prefill and no decode. Papers: Orca (OSDI 2022), arXiv
2309.06180, 2403.02310. Invariant: the first running request in rank order gets a token in every step.
"""

import sys
from collections.abc import Sequence

from pelton.core.config import ScheduleSection
from pelton.kv.blocks import Blocks
from pelton.kv.group import most_blocks
from pelton.kv.pool import NULL_BLOCK
from pelton.schedule.draft import Draft
from pelton.schedule.forks import Forks
from pelton.schedule.order import Order
from pelton.schedule.places import Places
from pelton.schedule.sharing import Sharing
from pelton.schedule.tiers.tiers import Tiers
from pelton.schedule.tracked import Start, Tracked

FILE_WAITS = 5  # of a few seconds each


class Planner:
    """`preemptions` counts requests that lost their blocks, for whatever reason."""

    def __init__(
        self, order: Order, places: Places, blocks: Blocks, forks: Forks, sharing: Sharing, tiers: Tiers
    ) -> None:
        self.preemptions = 0
        self.order = order
        self._places = places
        self._blocks = blocks
        self._forks = forks
        self._sharing = sharing
        self._tiers = tiers
        self._refused: tuple[Tracked | None, tuple[int, ...]] = (None, ())

    def draft(self, limits: ScheduleSection) -> Draft:
        """The next step; without rows where there is nothing to compute."""
        draft = Draft(
            budget=limits.max_num_batched_tokens,
            most=min(limits.max_num_batched_tokens, limits.long_prefill_token_threshold or sys.maxsize),
            cap=limits.long_prefill_token_threshold,
            decodes=sum(request.total - request.computed == 1 for request in self._places.running),
            context_cost=limits.context_cost or 0.0,
        )
        self._continue_running(draft)
        # What was taken away is not given to another at once.
        if not draft.preempted:
            self._admit_waiting(draft)
        self._wait_for_files(draft)
        if not draft.rows and self._forks.give_back(force=True):
            self._admit_waiting(draft)
            self._wait_for_files(draft)
        for blocks in draft.spent:
            self._blocks.release(blocks)
        return draft

    def _wait_for_files(self, draft: Draft) -> None:
        """Where nobody has anything to compute but for what comes from files, that is waited for; but not for ever."""
        for _ in range(FILE_WAITS):
            if draft.rows or not self._tiers.wait():
                return
            self._admit_waiting(draft)
        if not draft.rows:
            self._tiers.abandon()
            self._refused = None, ()
            self._admit_waiting(draft)

    def preempt(self, request: Tracked, *, keep: bool = True) -> None:
        """The request waits again. What it has computed of its prompt and its drawn tokens is saved, if it pays and it
        may be kept, or computed once more.
        """
        if keep:
            self._tiers.swap.out(request)
        request.table.release()
        self._places.leave(request)
        request.computed = request.shared = 0
        request.copied = False
        self._places.wait(request)
        self.preemptions += 1

    def _continue_running(self, draft: Draft) -> None:
        """Where blocks run out, families give theirs back, then later requests lose theirs.

        Prompts leave a token of the budget for each decode behind them. That is always possible: whoever is admitted
        gets a token of what the others left over, so there are never more running requests than tokens in the budget.
        """
        running = list(self._places.running)
        place = 0
        while place < len(running):
            request = running[place]
            remaining = request.total - request.computed
            decodes = remaining == 1
            draft.decodes -= decodes
            share = draft.budget if decodes else draft.budget - draft.decodes
            count = draft.cut(request.computed, remaining, share)
            while count and not draft.reserve(request, count):
                if self._forks.give_back():
                    continue
                later = running[place + 1 :]
                victim = place + 1 + self.order.victim(later) if later else place
                gone = running.pop(victim)
                draft.decodes -= victim > place and gone.remaining == 1
                self.preempt(gone)
                draft.preempted.append(gone.request_id)
                if gone is request:
                    break
            if request.row is None:
                continue  # it preempted itself: the next one has moved to its place
            if count:
                draft.place(request, count)
            place += 1
        assert draft.decodes == 0 <= draft.budget, f"{draft.decodes} decodes left over, budget {draft.budget}"

    def _admit_waiting(self, draft: Draft) -> None:
        """In rank order, until one does not fit. Those that wait for what another computes are passed over."""
        waiting = self._places.waiting
        if not waiting or not self._places.free_rows or not draft.budget:
            return
        step = draft.most
        promised = [0] * len(self._blocks.groups)
        for request in self._places.running:
            _add(promised, request.table.wanted(request.total, step))
        place = 0
        while place < len(waiting) and self._places.free_rows and draft.budget:
            request = waiting[place]
            # One block more for each running request: its next tokens must not preempt at once who is admitted here.
            room = self._room(promised)
            if request is self._refused[0] and not _more(room, self._refused[1]):
                return  # nothing became free: do not look for its prefix again
            start = self._start(request)
            if start is None:
                place += 1
                continue
            if not self._begin(draft, request, start, promised):
                self._refused = request, room
                return
            _add(promised, request.table.wanted(request.total, step))

    def _room(self, promised: Sequence[int]) -> tuple[int, ...]:
        running = len(self._places.running)
        return tuple(free - asked - running for free, asked in zip(self._blocks.available, promised, strict=True))

    def _start(self, request: Tracked) -> Start | None:
        start = self._tiers.swap.start(request)
        if start is not None:
            return start
        family = self._forks.family(request)
        if family is not None:
            return self._forks.start(family)
        start = self._sharing.start(request, self._places.running)
        return start if start is None else self._tiers.extend(request, start)

    def _begin(self, draft: Draft, request: Tracked, start: Start, promised: Sequence[int]) -> bool:
        """The request runs; False (nothing changed) where the blocks do not suffice for what all running ones know."""
        # What it shares may have been unused, and so available, until now.
        self._blocks.share(start.blocks)
        if _more(self._asked(request, start, draft.most), self._room(promised)):
            self._blocks.release(start.blocks)
            return False
        if self._forks.family(request) is None:
            self._sharing.began(request, start)
        else:
            draft.spent.append(self._forks.leave(request))
        self._tiers.began(request, start)
        count = draft.cut(start.cached, request.total - start.cached, draft.budget)
        self._places.run(request)
        reserved = draft.admit(request, start, count)
        assert reserved, f"{request.request_id}: {self._blocks.available} blocks available, {promised} promised"
        draft.place(request, count)
        return True

    def _asked(self, request: Tracked, start: Start, step: int) -> tuple[int, ...]:
        """Blocks of each group that the request will want beside those it begins with."""
        entries, held = self._blocks.needed(request.total), start.blocks or ((),) * len(self._blocks.groups)
        asked = []
        for group, own in zip(self._blocks.groups, held, strict=True):
            if group.window is None:
                asked.append(entries - sum(block != NULL_BLOCK for block in own))
                continue
            # What it shares of a window is no part of this: others may still hold it when the window has passed it.
            most = most_blocks(group.window, request.total, step, self._blocks.block_size)
            asked.append(min(entries - start.full, most))
        return tuple(asked)


def _add(sums: list[int], more: Sequence[int]) -> None:
    for place, number in enumerate(more):
        sums[place] += number


def _more(numbers: Sequence[int], others: Sequence[int]) -> bool:
    """Whether one of the numbers is above its other."""
    return any(number > other for number, other in zip(numbers, others, strict=True))
