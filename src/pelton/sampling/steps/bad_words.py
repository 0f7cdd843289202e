"""Bad words: token sequences that the answer must not complete lose their last token just before.

As in vLLM, and unlike transformers, only the answer is looked at: a sequence that began in the prompt may be completed.
"""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits, without


class BadWords:
    """Drops the last token of a sequence whose other tokens are the answer's last ones; a single token always."""

    stage: ClassVar[float] = 3
    moves_argmax: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return bool(params.bad_words)

    def encode(self, params: SamplingParams, record: np.void) -> None:
        """Nothing: it is all in the edits."""

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        for token in completing(history):
            edits.ban_once(token)

    def settles(self, params: SamplingParams) -> None:
        return None

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        return without(logits, completing(history))


def completing(history: History) -> set[int]:
    """The tokens that would complete one of the history's banned sequences now."""
    output = history.output
    found = set()
    for word in history.banned:
        before = len(word) - 1
        # The token before is compared first: for nearly all words that is the whole work.
        if not before or (len(output) >= before and output[-1] == word[-2] and tuple(output[-before:]) == word[:-1]):
            found.add(word[-1])
    return found
