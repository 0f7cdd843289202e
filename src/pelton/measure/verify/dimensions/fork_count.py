"""ForkCount: whether a request asks for one answer or for several, which share the prompt's blocks until they write."""

from collections.abc import Mapping
from random import Random

from pelton.core.events import RequestFinished
from pelton.measure.verify.cases import Prompt
from pelton.measure.verify.dimension import Draft, Live, StepSeen

ONE, SEVERAL = "n=1", "n=3"
ANSWERS = 3


class ForkCount:
    """The tested request asks for three answers; each is compared with the one it would have been alone."""

    values = (ONE, SEVERAL)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        """The answers compute the last token each for itself: where it begins a block, none has to be copied."""
        return value == ONE or (len(prompt) - 1) % block_size != 0

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        draft.tested.n = ANSWERS if value == SEVERAL else 1

    def between(self, value: str, live: Live) -> None:
        """Nothing: the schedule says all."""

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        finished = [event.request_id for event in seen.events if isinstance(event, RequestFinished)]
        return {
            "answers asked for singly": sum(seen.requests[request_id].params.n == 1 for request_id in finished),
            "KV blocks copied on write": seen.after.copied_blocks_total - seen.before.copied_blocks_total,
        }

    def proof(self, value: str) -> str:
        return "KV blocks copied on write" if value == SEVERAL else "answers asked for singly"
