"""Allowed tokens: all others are dropped, before anything else is done to the logits."""

from typing import ClassVar

import numpy as np

from pelton.backends.backend import ONLY_ALLOWED
from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits, kept


class AllowedTokens:
    """Keeps the request's allowed ids. Natively a flag of the row, and an entry for each allowed token."""

    stage: ClassVar[float] = 2
    moves_argmax: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.allowed_token_ids is not None

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["flags"] = ONLY_ALLOWED if self.wanted(params) else 0

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        if not known:
            edits.allow(params.allowed_token_ids or ())

    def settles(self, params: SamplingParams) -> int:
        return 0

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        which = np.zeros(len(logits), np.bool_)
        which[list(params.allowed_token_ids or ())] = True
        return kept(logits, which)
