"""Preemption: whether requests lose their blocks midway, and are computed once more or wait in host memory.

It asks the scheduler to preempt, and half of the time leaves too few blocks for all. Invariant: a request is asked to
leave a few times at most, so that every answer ends.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from pelton.core.events import RequestFinished, RequestPreempted
from pelton.measure.verify.cases import Prompt
from pelton.measure.verify.dimension import Draft, Live, StepSeen

NONE, RANDOM, SWAPPED = "none", "at random steps", "swapped"
MOST = 6  # in one round
CHANCE = 0.15  # of one before a step
ASKED = "asked to leave"


class Preemption:
    """At random steps one of the running requests, at any point of its prompt or answer."""

    values = (NONE, RANDOM, SWAPPED)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return True

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        draft.scarce |= value != NONE and rng.random() < 0.5
        if value == SWAPPED:
            draft.cache = replace(draft.cache, preemption_mode="swap")

    def between(self, value: str, live: Live) -> None:
        """The first time for certain before any answer is over: once one of them is half done."""
        asked = live.counts[ASKED]
        if value == NONE or not live.drawn or asked >= MOST:
            return
        late = max(live.drawn.values()) >= live.cases.max_tokens // 2
        if live.rng.random() < CHANCE or (late and not asked):
            live.counts[ASKED] += 1
            live.engine.scheduler.preempt(live.rng.choice(sorted(live.drawn)))

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        finished = [event.request_id for event in seen.events if isinstance(event, RequestFinished)]
        after, before = seen.after, seen.before
        return {
            "interruptions of answers": sum(isinstance(event, RequestPreempted) for event in seen.events),
            "answers never interrupted": sum(request_id not in seen.left for request_id in finished),
            "blocks loaded from host memory": after.loaded_blocks_total - before.loaded_blocks_total,
        }

    def proof(self, value: str) -> str:
        return {
            NONE: "answers never interrupted",
            RANDOM: "interruptions of answers",
            SWAPPED: "blocks loaded from host memory",
        }[value]
