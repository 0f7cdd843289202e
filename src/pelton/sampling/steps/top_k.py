"""Top-k: drops all but the k most likely tokens (Fan et al., arXiv 1805.04833)."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits, kept

LARGEST = 2**31 - 1


class TopK:
    """Keeps x >= the k-th largest, so more than k where it has equals. 0 and -1 are off."""

    stage: ClassVar[float] = 10
    moves_argmax: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.top_k > 0

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["top_k"] = min(max(params.top_k, 0), LARGEST)

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        """Nothing: the record says it all."""

    def settles(self, params: SamplingParams) -> int:
        return 0

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        if params.top_k >= len(logits):
            return logits.copy()
        least = np.partition(logits, -params.top_k)[-params.top_k]
        return kept(logits, logits >= least)
