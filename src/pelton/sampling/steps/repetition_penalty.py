"""Repetition penalty: tokens that have occurred become less likely (Keskar et al., arXiv 1909.05858)."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits


class RepetitionPenalty:
    """x * r below zero, else x / r, once for each distinct token of prompt and answer."""

    stage: ClassVar[float] = 5
    moves_argmax: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return params.repetition_penalty != 1

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["repetition"] = params.repetition_penalty

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        edits.see(set(history.new_output(known)) if known else {*history.prompt, *history.output})

    def settles(self, params: SamplingParams) -> None:
        return None

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        seen = np.unique(np.array([*history.prompt, *history.output], np.int64))
        penalty = logits.dtype.type(params.repetition_penalty)
        result = logits.copy()
        x = logits[seen]
        result[seen] = np.where(x < 0, x * penalty, x / penalty)
        return result
