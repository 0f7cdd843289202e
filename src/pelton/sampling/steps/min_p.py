"""Min-p: drops tokens far less likely than the most likely one (Nguyen et al., arXiv 2407.01082)."""

import math
from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits, kept


class MinP:
    """Keeps p >= min_p * p_max, that is x >= x_max + log(min_p); the most likely token always stays."""

    stage: ClassVar[float] = 9
    moves_argmax: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.min_p > 0

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["min_p"] = params.min_p

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        """Nothing: the record says it all."""

    def settles(self, params: SamplingParams) -> int:
        return 0

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        least = float(logits.max()) + math.log(params.min_p)
        return kept(logits, logits.astype(np.float64) >= least)
