"""Least number of tokens: before it is reached, no token that would end the answer."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits, without


class MinTokens:
    """Drops every id that ends the answer while the answer has fewer tokens. Stop strings are held back elsewhere."""

    stage: ClassVar[float] = 4
    moves_argmax: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.min_tokens > 0

    def encode(self, params: SamplingParams, record: np.void) -> None:
        """Nothing: it is all in the edits."""

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        if len(history.output) < params.min_tokens:
            for token in history.stop_ids:
                edits.ban_once(token)

    def settles(self, params: SamplingParams) -> int:
        return params.min_tokens

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        return without(logits, history.stop_ids if len(history.output) < params.min_tokens else ())
