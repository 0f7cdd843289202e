"""ChunkSizes: in how large pieces prompts are computed. Decoding goes token by token whatever the value."""

from collections.abc import Mapping
from random import Random

from pelton.measure.verify.cases import Prompt
from pelton.measure.verify.dimension import Draft, Live, StepSeen

SMALL, LARGE = "small", "large"
LARGEST_SMALL = 16
WHOLE = 0


class ChunkSizes:
    """Small: 1 to 16 tokens, another number in each step. Large: from 17 tokens to the whole prompt."""

    values = (LARGE, SMALL)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return len(prompt) > LARGEST_SMALL

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        """Nothing: sizes are set step by step."""

    def between(self, value: str, live: Live) -> None:
        """One limit for all pieces of the step to come."""
        if value == SMALL:
            live.limit_pieces(live.rng.randint(1, LARGEST_SMALL))
        else:
            live.limit_pieces(live.rng.choice((WHOLE, live.rng.randint(LARGEST_SMALL + 1, 4 * LARGEST_SMALL))))

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        return {
            "prompts cut into small pieces": sum(
                piece.ends_in_prompt and piece.count <= LARGEST_SMALL for piece in seen.pieces
            ),
            "large pieces of prompts": sum(piece.count > LARGEST_SMALL for piece in seen.pieces),
        }

    def proof(self, value: str) -> str:
        return "prompts cut into small pieces" if value == SMALL else "large pieces of prompts"
