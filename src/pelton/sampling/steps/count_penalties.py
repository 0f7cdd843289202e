"""Frequency and presence penalties: how often, and whether, a token has occurred in the answer (OpenAI's rule)."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits


class CountPenalties:
    """x - frequency * count, then x - presence if there is any; the prompt does not count."""

    stage: ClassVar[float] = 6
    moves_argmax: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.frequency_penalty != 0 or params.presence_penalty != 0

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["frequency"] = params.frequency_penalty
        record["presence"] = params.presence_penalty

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        for token in history.new_output(known):
            edits.count(token)

    def settles(self, params: SamplingParams) -> None:
        return None

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        count = np.zeros_like(logits)
        np.add.at(count, list(history.output), 1)
        # Python's floats take the precision of the arrays.
        result: Logits = logits - params.frequency_penalty * count
        result[count > 0] -= params.presence_penalty
        return result
