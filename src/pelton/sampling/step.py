"""LogitsStep: one change to a row of logits between the model and the draw.

It keeps no state and sees no other row. A step with a native form is encoded in the row's record, which the backend's
kernel carries out; `apply` is the mathematics, once, for backends that have none and for the tests.
"""

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams

Logits = NDArray[np.float32] | NDArray[np.float64]


class LogitsStep(Protocol):
    """A technique between logits and token.

    `stage` places it among the others (ascending, no two alike): 1 to 6 come before the greedy choice, 8 and later
    shape what is drawn from: 8 scale, 9 floor, 10 count, 11 mass. `moves_argmax`: the most likely token may change, so
    that greedy rows need the step too.
    """

    stage: ClassVar[int]
    moves_argmax: ClassVar[bool]
    needs: ClassVar[Needs]

    def wanted(self, params: SamplingParams) -> bool:
        """Whether the request asks for it; where not, `apply` would change nothing."""
        ...

    def encode(self, params: SamplingParams, record: np.void) -> None:
        """Writes the step's own fields of a SAMPLING record as they take effect; neutral values if not wanted."""
        ...

    def apply(self, logits: Logits, params: SamplingParams) -> Logits:
        """New logits [vocab] of the same dtype, dropped tokens at -inf. At least one is above -inf before and after."""
        ...


def kept(logits: Logits, which: NDArray[np.bool_]) -> Logits:
    """The logits [vocab] where `which` says so, -inf elsewhere."""
    result = np.full_like(logits, -np.inf)
    result[which] = logits[which]
    return result
