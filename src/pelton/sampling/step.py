"""LogitsStep: one change to a row of logits between the model and the draw.

It keeps no state and sees no other row. Its native form is what it writes into the row's record and edits, which the
backend's kernel carries out; `apply` is the mathematics, once, for the tests and for backends that have no kernel.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pelton.core.needs import Needs
from pelton.core.params import SamplingParams
from pelton.sampling.edits import Edits

Logits = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """What one answer's draw may look at: ids of the prompt and of the answer so far, which grows.

    `stop_ids` end the answer. `banned`: token sequences that it must not complete.
    """

    prompt: Sequence[int]
    output: Sequence[int] = ()
    stop_ids: Collection[int] = ()
    banned: tuple[tuple[int, ...], ...] = ()

    @property
    def known(self) -> int:
        """How many tokens there are."""
        return len(self.prompt) + len(self.output)

    def new_output(self, known: int) -> Sequence[int]:
        """The answer's tokens behind the first `known` of all."""
        return self.output[max(known - len(self.prompt), 0) :]


class LogitsStep(Protocol):
    """A technique between logits and token.

    `stage` places it among the others (ascending, no two alike): 2 to 6 come before the greedy choice, 8 and later
    shape what is drawn from: 8 scale, 9 floor, 10 count, 11 mass. `moves_argmax`: the most likely token may change, so
    that greedy rows need the step too; such a step may also leave no token at all.
    """

    stage: ClassVar[float]
    moves_argmax: ClassVar[bool]
    needs: ClassVar[Needs]

    def wanted(self, params: SamplingParams) -> bool:
        """Whether the request asks for it; where not, `apply` would change nothing."""
        ...

    def encode(self, params: SamplingParams, record: np.void) -> None:
        """Writes the step's own fields of a SAMPLING record as they take effect; neutral values if not wanted."""
        ...

    def edit(self, params: SamplingParams, history: History, edits: Edits, known: int) -> None:
        """Writes what single tokens' logits need for the next draw; what is written stays, unless it is for one draw.

        `known`: how many tokens of the history, the prompt's first, the step was told of before; 0 at the first time.
        """
        ...

    def settles(self, params: SamplingParams) -> int | None:
        """From how many tokens of the answer on the edits stay as they are; None: each token may change them."""
        ...

    def apply(self, logits: Logits, params: SamplingParams, history: History) -> Logits:
        """New logits [vocab] of the same dtype, dropped tokens at -inf. Behind stage 7 one above it remains so."""
        ...


def kept(logits: Logits, which: NDArray[np.bool_]) -> Logits:
    """The logits [vocab] where `which` says so, -inf elsewhere."""
    result = np.full_like(logits, -np.inf)
    result[which] = logits[which]
    return result


def without(logits: Logits, tokens: Collection[int]) -> Logits:
    """The logits [vocab] with these tokens at -inf."""
    result = logits.copy()
    result[list(tokens)] = -np.inf
    return result
