"""BatchMates: whether other prompts are computed in the same steps. Copies of the prompt itself are no neighbours."""

from collections.abc import Mapping
from random import Random

from pelton.measure.verify.cases import Prompt
from pelton.measure.verify.dimension import TEST, Ask, Draft, Live, StepSeen

ALONE, TOGETHER = "alone", "neighbours"
FEWEST, MOST = 2, 4  # neighbours of a request
WINDOW = 5  # steps within which they join


class BatchMates:
    """Neighbours join with the tested request or some steps later, and leave when they are done."""

    values = (ALONE, TOGETHER)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return True

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        """One neighbour joins in the first step, so that some step is shared however short the answer is."""
        if value != TOGETHER:
            return
        others = draft.cases.other_prompts(draft.tested.case.prompt, rng, rng.randint(FEWEST, MOST))
        for number, other in enumerate(others):
            case = draft.cases.case(other, rng.choice(draft.cases.ways))
            draft.asks.append(Ask(case, phase=TEST, after=rng.randrange(WINDOW) if number else 0))

    def between(self, value: str, live: Live) -> None:
        """Nothing: the schedule says all."""

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        prompts = len({piece.prompt for piece in seen.pieces})
        return {"steps of one prompt": int(prompts == 1), "steps of several prompts": int(prompts > 1)}

    def proof(self, value: str) -> str:
        return "steps of several prompts" if value == TOGETHER else "steps of one prompt"
