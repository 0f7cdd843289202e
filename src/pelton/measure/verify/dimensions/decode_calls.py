"""DecodeCalls: whether the backend draws one token of each answer in a call, or several in a row."""

from collections.abc import Mapping
from random import Random

from pelton.core.config import MOST_STEPS
from pelton.measure.verify.cases import Case, Cases, Prompt
from pelton.measure.verify.dimension import TEST, Ask, Draft, Live, StepSeen
from pelton.sampling.follow import settles

ONE, SEVERAL = "one", "several"


class DecodeCalls:
    """Several: at most 2 to 8, another number in each call; half of the time for all answers of the round together."""

    values = (ONE, SEVERAL)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return True

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        """An answer of which several tokens can be drawn in a row comes last, alone. A mate that needs a decision
        before each token keeps all to single steps.
        """
        if value == ONE:
            return
        if rng.random() < 0.5:
            for ask in draft.asks:
                ask.case = _settled(draft.cases, ask.case, rng)
        tested = draft.tested.case
        draft.asks.append(Ask(_settled(draft.cases, tested, rng), phase=TEST + 1))

    def between(self, value: str, live: Live) -> None:
        live.limit_steps(1 if value == ONE else live.rng.randint(2, MOST_STEPS))

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        steps = seen.after.steps_total - seen.before.steps_total
        decoding = all(piece.start >= len(piece.prompt) for piece in seen.pieces)
        return {
            "calls of several steps": steps > 1,
            "tokens drawn in a row": steps * len(seen.pieces) if steps > 1 else 0,
            "decoding steps by themselves": steps == 1 and decoding,
        }

    def proof(self, value: str) -> str:
        return "calls of several steps" if value == SEVERAL else "decoding steps by themselves"


def _settled(cases: Cases, case: Case, rng: Random) -> Case:
    """The same prompt, greedy or scored as before, in a way that needs no decision between tokens."""
    alike = [way for way in cases.ways if way.greedy == case.way.greedy and way.scores == case.way.scores]
    settled = [way for way in alike if settles(cases.alone(cases.case(case.prompt, way), 0)) is not None]
    return cases.case(case.prompt, rng.choice(settled)) if settled else case
