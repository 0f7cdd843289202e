"""Hashes of what each op gave for each token, collected from an executable and laid side by side.

Invariant: equal hashes stand for equal bits; what was not computed has none and differs from nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import Executable, StepInputs, StepOutputs
from pelton.backends.passed_on import PassedOn

UInt64 = NDArray[np.uint64]
NOT_COMPUTED = 0


@dataclass(frozen=True, slots=True)
class FirstOp:
    """Where two computations part: the token at `index`, in the op with this name."""

    index: int
    op: str

    def __str__(self) -> str:
        return f"token index {self.index}, {self.op}"


@dataclass(slots=True)
class Hashes:
    """Of one sequence: index -> one column [ops] for each time that the token there was computed."""

    columns: dict[int, list[UInt64]] = field(default_factory=dict)

    def add(self, start: int, hashes: UInt64) -> None:
        """`hashes` [ops, count] of the tokens from index `start` on."""
        for offset in range(hashes.shape[1]):
            self.columns.setdefault(start + offset, []).append(hashes[:, offset])


def first_difference(reference: Hashes, found: Hashes, labels: Sequence[str], last: int) -> FirstOp | None:
    """The smallest index up to `last`, and there the first op, at which `found` was computed differently, if any."""
    for index in sorted(found.columns):
        if index > last or index not in reference.columns:
            continue
        (expected,) = reference.columns[index]
        for column in found.columns[index]:
            differs = (column != expected) & (column != NOT_COMPUTED) & (expected != NOT_COMPUTED)
            if differs.any():
                return FirstOp(index, labels[int(np.argmax(differs))])
    return None


class TracedExecutable(PassedOn):
    """An Executable that asks for hashes in every step; `last` [ops, tokens] are those of the last one."""

    def __init__(self, inner: Executable) -> None:
        super().__init__(inner)
        self.last: UInt64 = np.zeros((0, 0), np.uint64)

    def run(self, inputs: StepInputs) -> StepOutputs:
        """As the inner one's, which must give hashes."""
        outputs = self.inner.run(replace(inputs, trace=True))
        assert outputs.trace is not None, "the backend gave no hashes"
        self.last = outputs.trace
        return outputs
