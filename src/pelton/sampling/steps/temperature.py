"""Temperature: logits divided by it, so that a higher one evens the distribution out. Not for greedy rows."""

from typing import ClassVar

import numpy as np

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits
from pelton.sampling.step import History, Logits

LARGEST = float(np.finfo(np.float32).max)


class Temperature:
    """x / temperature in the logits' own precision. A record's 0 says greedy."""

    stage: ClassVar[float] = 8
    moves_argmax: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()

    def wanted(self, params: SamplingParams) -> bool:
        return not params.greedy and params.temperature != 1.0

    def encode(self, params: SamplingParams, record: np.void) -> None:
        record["temperature"] = 0.0 if params.greedy else min(params.temperature, LARGEST)

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        """Nothing: the record says it all."""

    def settles(self, params: SamplingParams) -> int:
        return 0

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        with np.errstate(over="ignore"):  # whoever draws looks at the maximum
            return logits / logits.dtype.type(min(params.temperature, LARGEST))
