"""DecodeCalls: whether the backend draws one token of each answer in a call, or several in a row; and when it is
planned: behind the step before, or while that one runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from pelton.core.config import MOST_STEPS
from pelton.measure.verify.cases import Case, Cases, Prompt
from pelton.measure.verify.dimension import TEST, Ask, Draft, Live, StepSeen
from pelton.sampling.follow import settles

ONE, SEVERAL, AHEAD = "one", "several", "planned ahead"


class DecodeCalls:
    """Several: at most 2 to 8, another number in each call; half of the time for all answers of the round together.

    Planned ahead: one in most calls, several in some.
    """

    values = (ONE, SEVERAL, AHEAD)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return True

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        """An answer of which several tokens can be drawn in a row comes last, alone. A mate that needs a decision
        before each token keeps all to single steps.
        """
        if value == AHEAD:
            draft.schedule = replace(draft.schedule, planning_depth=2)
        if value != SEVERAL:
            return
        if rng.random() < 0.5:
            for ask in draft.asks:
                ask.case = _settled(draft.cases, ask.case, rng)
        tested = draft.tested.case
        draft.asks.append(Ask(_settled(draft.cases, tested, rng), phase=TEST + 1))

    def between(self, value: str, live: Live) -> None:
        several = value == SEVERAL or (value == AHEAD and live.rng.random() < 0.1)
        live.limit_steps(live.rng.randint(2, MOST_STEPS) if several else 1)

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        steps = seen.after.steps_total - seen.before.steps_total
        decoding = all(piece.start >= len(piece.prompt) for piece in seen.pieces)
        return {
            "calls of several steps": steps > 1,
            "tokens drawn in a row": steps * len(seen.pieces) if steps > 1 else 0,
            "decoding steps by themselves": steps == 1 and decoding,
            "steps planned ahead": seen.after.plans_ahead_total - seen.before.plans_ahead_total,
            "plans ahead that lost rows": seen.after.plans_trimmed_total - seen.before.plans_trimmed_total,
            "plans ahead taken back": seen.after.plans_taken_back_total - seen.before.plans_taken_back_total,
        }

    def proof(self, value: str) -> str:
        proofs = {ONE: "decoding steps by themselves", SEVERAL: "calls of several steps", AHEAD: "steps planned ahead"}
        return proofs[value]


def _settled(cases: Cases, case: Case, rng: Random) -> Case:
    """The same prompt, greedy or scored as before, in a way that needs no decision between tokens."""
    alike = [way for way in cases.ways if way.greedy == case.way.greedy and way.scores == case.way.scores]
    settled = [way for way in alike if settles(cases.alone(cases.case(case.prompt, way), 0)) is not None]
    return cases.case(case.prompt, rng.choice(settled)) if settled else case
