"""Series: how many decode steps the next call may do, where nothing has to be decided between them.

Knows no tokens. Invariant: a series delays nobody who could be served, and takes a block from nobody; its rows would
have had the same steps one by one.
"""

import sys
from collections.abc import Sequence

from pelton.core.config import ScheduleSection
from pelton.kv.blocks import Blocks
from pelton.schedule.draft import Draft
from pelton.schedule.tracked import Tracked

CALL_SECONDS = 0.02  # of one call: what is drawn in it is told together, and may not come in visible jerks
KEPT = 0.7  # of the mean time of a step, with each new one
SHORTEST = 1e-6


class Series:
    """`max_len` as in Scheduler. `seconds`: how long one call should take at most; infinity asks for no times."""

    def __init__(self, blocks: Blocks, max_len: int, seconds: float = CALL_SECONDS) -> None:
        self.seconds = seconds
        self._blocks = blocks
        self._max_len = max_len
        # By the bits of the number of rows.
        self._step: dict[int, float] = {}

    def saw(self, rows: int, steps: int, seconds: float) -> None:
        """A call of so many decode steps is over."""
        bits, mean = rows.bit_length(), seconds / steps
        self._step[bits] = KEPT * self._step.get(bits, mean) + (1 - KEPT) * mean

    def extend(self, draft: Draft, running: Sequence[Tracked], limits: ScheduleSection) -> None:
        """Makes the draft, all of whose rows decode, a series, with blocks for it; or lets it be one step.

        The first token of an answer is told at once.
        """
        steps = min(limits.max_steps_per_call, draft.most, self._timely(len(running)))
        if steps < 2 or draft.preempted or len(draft.rows) != len(running):
            return
        for request in running:
            steps = min(steps, self._alone(request))
            if steps < 2:
                return
        while steps > 1 and not self._room(running, steps):
            steps -= 1
        if steps > 1:
            draft.extend(running, steps)

    def _timely(self, rows: int) -> int:
        """Steps that fit into the time; one as long as none was measured."""
        if self.seconds == float("inf"):
            return sys.maxsize
        step = self._step.get(rows.bit_length())
        return 1 if step is None else int(self.seconds / max(step, SHORTEST))

    def _alone(self, request: Tracked) -> int:
        """How many tokens can be drawn for the request before it ends by their number or has to be looked at."""
        asked, drawn = request.asked, request.total - request.asked.prompt
        if request.remaining != 1 or not drawn or asked.settles is None or drawn < asked.settles:
            return 1
        return min(asked.max_tokens, self._max_len - asked.prompt) - drawn

    def _room(self, running: Sequence[Tracked], steps: int) -> bool:
        """Whether there are blocks for so many tokens of everybody."""
        wanted = sum(request.table.needed(request.computed + steps) for request in running)
        return all(available >= wanted for available in self._blocks.available)
