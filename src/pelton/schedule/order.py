"""The interface of an order: who goes first, and who gives way when blocks run out. It decides nothing else."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from pelton.schedule.tracked import NewRequest, Tracked


class Order(Protocol):
    """Ranks must differ between requests, so that the order is total and somebody is always first.

    `heeds_priority`: whether it looks at requests' priorities; where it does not, none may be given.
    """

    heeds_priority: ClassVar[bool]

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        """Smaller goes first. Asked once, when the request comes as the `number`-th: who is ahead stays ahead."""
        ...

    def victim(self, running: Sequence[Tracked]) -> int:
        """Which of these (in rank order, never empty) loses its blocks: its place in the sequence."""
        ...
