"""Top-p: keeps the fewest most likely tokens that hold a given mass (Holtzman et al., arXiv 1904.09751)."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits, kept

SMALLEST = float(np.finfo(np.float32).tiny)


class TopP:
    """Going down by x (ties: lower id first), keeps a token while the mass before it is below top_p of the whole.

    That is the shortest prefix whose mass reaches top_p, and the same as the usual rule from below, which drops a token
    while the mass up to and including it is at most 1 - top_p. The mass is that of the tokens other steps have left.
    """

    stage: ClassVar[float] = 11
    moves_argmax: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.top_p < 1

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["top_p"] = max(params.top_p, SMALLEST)

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        """Nothing: the record says it all."""

    def settles(self, params: SamplingParams) -> int:
        return 0

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        order = np.argsort(-logits, kind="stable")
        mass = np.exp(logits[order].astype(np.float64) - float(logits.max()))
        total = np.cumsum(mass)
        before = np.concatenate(([0.0], total[:-1]))
        which = np.zeros(len(logits), np.bool_)
        which[order[before < params.top_p * total[-1]]] = True
        return kept(logits, which)
