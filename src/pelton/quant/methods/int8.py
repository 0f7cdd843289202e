"""8-bit codes by rounding to nearest, with a scale for each row, or for each 32, 64 or 128 weights along it."""

from typing import ClassVar

from pelton.core.needs import Claim, Needs
from pelton.core.registry import Choice
from pelton.quant.rounding import Rounding


class Int8:
    """`group`: weights that share a scale, 0 for a whole row. `head=false` leaves embedding and output matrix alone."""

    needs: ClassVar[Needs] = Needs(claim=Claim.LOSSY)

    def __init__(self, choice: Choice | None = None) -> None:
        choice = choice or Choice("quantization", "int8")
        choice.expect(("group", "head"))
        self._rounding = Rounding(8, choice.one_of("group", (0, 32, 64, 128), 0))
        self._head = choice.switch("head", True)

    def rounding(self, cols: int, *, table: bool) -> Rounding | None:
        return self._rounding.fitting(cols) if self._head or not table else None

    def label(self) -> str:
        group = [f"group={self._rounding.group}"] if self._rounding.group else []
        options = ",".join([*group, *([] if self._head else ["head=false"])])
        return f"int8:{options}" if options else "int8"
