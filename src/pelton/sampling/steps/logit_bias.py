"""Logit bias: numbers added to single tokens' logits (OpenAI's rule)."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits


class LogitBias:
    """x + bias, in the logits' precision. A dropped token stays dropped."""

    stage: ClassVar[float] = 4.5
    moves_argmax: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return bool(params.logit_bias)

    def encode(self, params: SamplingParams, record: np.void) -> None:
        """Nothing: it is all in the edits."""

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        if not known:
            edits.add_all(params.logit_bias or {})

    def settles(self, params: SamplingParams) -> int:
        return 0

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        result = logits.copy()
        for token, bias in (params.logit_bias or {}).items():
            result[token] += logits.dtype.type(bias)
        return result
