"""4-bit codes by rounding to nearest, with a scale (and a minimum) for each 32, 64 or 128 weights along a row."""

from typing import ClassVar

from pelton.core.needs import Claim, Needs
from pelton.core.registry import Choice
from pelton.quant.rounding import Rounding

TABLE = Rounding(8, 0)


class Int4:
    """`group`: weights that share a scale; `minimum`: with a minimum for each group, too.

    Embedding and output matrix, where an error reaches every token, get 8 bits with a scale for each row;
    `head=false` leaves them alone.
    """

    needs: ClassVar[Needs] = Needs(claim=Claim.LOSSY)

    def __init__(self, choice: Choice | None = None) -> None:
        choice = choice or Choice("quantization", "int4")
        choice.expect(("group", "minimum", "head"))
        self._rounding = Rounding(4, choice.one_of("group", (32, 64, 128), 32), choice.switch("minimum", False))
        self._head = choice.switch("head", True)

    def rounding(self, cols: int, *, table: bool) -> Rounding | None:
        if table:
            return TABLE if self._head else None
        return self._rounding.fitting(cols)

    def label(self) -> str:
        options = [f"group={self._rounding.group}", *(["minimum=true"] if self._rounding.minimum else [])]
        return f"int4:{','.join([*options, *([] if self._head else ['head=false'])])}"
