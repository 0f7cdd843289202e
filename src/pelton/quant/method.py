"""The interface of a way to quantise a dense model: which matrices get which codes. The arithmetic is rounding.py's."""

from typing import ClassVar, Protocol

from pelton.core.needs import Needs
from pelton.core.registry import Choice
from pelton.quant.rounding import Rounding


class Method(Protocol):
    """One way, made from what the setting says. `needs`: its claim is always LOSSY."""

    needs: ClassVar[Needs]

    def __init__(self, choice: Choice | None = None) -> None:
        """SettingError for options that it has not. None: all as it is by default."""
        ...

    def rounding(self, cols: int, *, table: bool) -> Rounding | None:
        """What a matrix of so many columns becomes, or None to leave it as it is.

        `table`: it is looked up by token, or makes the logits.
        """
        ...

    def label(self) -> str:
        """The setting's value with every option that matters, the same for equal meanings."""
        ...
