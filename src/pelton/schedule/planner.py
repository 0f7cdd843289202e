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
from pelton.schedule.gate import Gate
from pelton.schedule.places import Places
from pelton.schedule.sharing import Sharing
from pelton.schedule.tiers.tiers import Tiers
from pelton.schedule.tracked import Start, Tracked

MOST_PASSED_OVER = 512  # requests that wait for others, in one plan: each takes microseconds to look at
FILE_WAITS = 5  # of a few seconds each


class Planner:
    """`preemptions` counts requests that lost their blocks, for whatever reason."""

    def __init__(
        self, gate: Gate, places: Places, blocks: Blocks, forks: Forks, sharing: Sharing, tiers: Tiers
    ) -> None:
        self.preemptions = 0
        self.gate = gate
        self._places = places
        self._blocks = blocks
        self._forks = forks
        self._sharing = sharing
        self._tiers = tiers
        self._refused: tuple[Tracked | None, tuple[int, ...]] = (None, ())

    def begin(self, limits: ScheduleSection, remaining: Sequence[int]) -> Draft:
        """A draft without rows, for running requests that have so many tokens left each."""
        return Draft(
            budget=limits.max_num_batched_tokens,
            most=min(limits.max_num_batched_tokens, limits.long_prefill_token_threshold or sys.maxsize),
            cap=self._cap(limits, remaining),
            decodes=remaining.count(1),
            context_cost=limits.context_cost or 0.0,
        )

    def draft(self, limits: ScheduleSection, now: float = 0.0, begun: Draft | None = None) -> Draft:
        """The next step; without rows where there is nothing to compute. `now`: see QueueView.

        `begun`: one that has the rows of the running requests already.
        """
        draft = begun
        if draft is None:
            draft = self.begin(limits, [request.total - request.computed for request in self._places.running])
            self._continue_running(draft)
        # What was taken away is not given to another at once.
        if draft.preempted:
            self.gate.ran_short()
        else:
            self._admit_waiting(draft, now)
        self._wait_for_files(draft, now)
        # Nobody waits for what is only held.
        while not draft.rows and self._places.waiting and self._give_back(force=True):
            self._admit_waiting(draft, now)
            self._wait_for_files(draft, now)
        for blocks in draft.spent:
            self._blocks.release(blocks)
        return draft

    def _wait_for_files(self, draft: Draft, now: float) -> None:
        """Where nobody has anything to compute but for what comes from files, that is waited for; but not for ever."""
        for _ in range(FILE_WAITS):
            if draft.rows or not self._tiers.wait():
                return
            self._admit_waiting(draft, now)
        if not draft.rows:
            self._tiers.abandon()
            self._refused = None, ()
            self._admit_waiting(draft, now)

    def preempt(self, request: Tracked, *, keep: bool = True) -> None:
        """The request waits again. What it has computed of its prompt and its drawn tokens is saved, if it pays and it
        may be kept, or computed once more.
        """
        if keep:
            self._tiers.swap.out(request)
        request.table.release()
        self._places.leave(request)
        request.computed = request.shared = 0
        request.copied, request.origin = False, None
        self._places.wait(request)
        self.preemptions += 1

    def over(self, request: Tracked) -> None:
        """A request ended; it still has its place."""
        self.gate.over(request)
        if request is self._refused[0]:
            self._refused = None, ()

    def _continue_running(self, draft: Draft) -> None:
        """Where blocks run out, families and sessions give theirs back, then later requests lose theirs.

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
            if decodes and draft.budget and request.total <= request.table.capacity:
                draft.place(request, 1)  # as below, for what most requests do in most steps
                place += 1
                continue
            share = draft.budget if decodes else draft.budget - draft.decodes
            count = draft.cut(request.computed, remaining, share)
            while count and not draft.reserve(request, count):
                if self._give_back():
                    continue
                later = running[place + 1 :]
                victim = place + 1 + self.gate.victim(later) if later else place
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

    def _admit_waiting(self, draft: Draft, now: float) -> None:
        """As the gate says, until one does not fit. Those that wait for what another computes are passed over."""
        waiting = self._places.waiting
        if not waiting or not self._places.free_rows or not draft.budget:
            return
        step = draft.most
        promised = [0] * len(self._blocks.groups)
        for request in self._places.running:
            _add(promised, request.table.wanted(request.total, step))
        passed_over = 0
        for request in self.gate.queue(waiting, now):
            if not self._places.free_rows or not draft.budget or passed_over == MOST_PASSED_OVER:
                return
            room = self._room(promised)
            if request is self._refused[0] and not _more(room, self._refused[1]):
                return  # nothing became free: do not look for its prefix again
            start = self._start(request)
            if start is None:
                passed_over += 1
                continue
            if not self._begin(draft, request, start, promised):
                self._refused = request, room
                return
            self._refused = None, ()
            _add(promised, request.table.wanted(request.total, step))

    def _cap(self, limits: ScheduleSection, remaining: Sequence[int]) -> int:
        """Most tokens of one request. With a target for the gaps, and no word of the user, half of a step while a long
        prompt is computed and a short one is there that may end beside it.
        """
        if limits.long_prefill_token_threshold or not limits.itl_target_ms:
            return limits.long_prefill_token_threshold
        half = limits.max_num_batched_tokens // 2
        if max(remaining, default=0) <= limits.max_num_batched_tokens:
            return 0
        waits = self._places.waiting[:1] if self._places.free_rows and self._refused[0] is None else []
        short = any(1 < tokens <= half for tokens in (*remaining, *(request.total for request in waits)))
        return half if short else 0

    def _give_back(self, *, force: bool = False) -> bool:
        """Blocks that nobody computes with are available again; False where there are none. `force`: see Forks."""
        return self._forks.give_back(force) or self._sharing.sessions.give_back()

    def _room(self, promised: Sequence[int]) -> tuple[int, ...]:
        kept = self.gate.reserve * len(self._places.running)
        return tuple(free - asked - kept for free, asked in zip(self._blocks.available, promised, strict=True))

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
        if not self._take(request, start, draft.most, promised):
            if start.origin is None:
                return False
            # The block to copy from needs a place beside the request's own while the step is planned.
            whole = self._sharing.start(request, self._places.running, parts=False)
            if whole is None or not self._take(request, whole, draft.most, promised):
                return False
            start = whole
        draft.spent.append(start.copied)
        if self._forks.family(request) is None:
            self._sharing.began(request, start)
        else:
            draft.spent.append(self._forks.leave(request))
        self._tiers.began(request, start)
        count = draft.cut(start.cached, request.total - start.cached, draft.budget)
        self._places.run(request)
        self.gate.began(request)
        reserved = draft.admit(request, start, count)
        assert reserved, f"{request.request_id}: {self._blocks.available} blocks available, {promised} promised"
        draft.place(request, count)
        return True

    def _take(self, request: Tracked, start: Start, step: int, promised: Sequence[int]) -> bool:
        """References on all that the request begins with; False (nothing changed) if the rest does not fit beside it.

        What it begins with may have been unused, and so available, until now.
        """
        self._blocks.share(start.blocks)
        self._blocks.share(start.copied)
        if not _more(self._asked(request, start, step), self._room(promised)):
            return True
        self._blocks.release(start.copied)
        self._blocks.release(start.blocks)
        return False

    def _asked(self, request: Tracked, start: Start, step: int) -> tuple[int, ...]:
        """Blocks of each group that the request will want beside those it begins with."""
        entries, held = self._blocks.needed(request.total), start.blocks or ((),) * len(self._blocks.groups)
        asked = []
        for number, (group, own) in enumerate(zip(self._blocks.groups, held, strict=True)):
            if group.window is None:
                asked.append(entries - sum(block != NULL_BLOCK for block in own))
                continue
            # What others hold of a window too is no part of this: they may still do when the window has passed it.
            most = most_blocks(group.window, request.total, step, self._blocks.block_size)
            asked.append(min(entries - start.full, most - self._blocks.alone(number, own)))
        return tuple(asked)


def _add(sums: list[int], more: Sequence[int]) -> None:
    for place, number in enumerate(more):
        sums[place] += number


def _more(numbers: Sequence[int], others: Sequence[int]) -> bool:
    """Whether one of the numbers is above its other."""
    return any(number > other for number, other in zip(numbers, others, strict=True))
