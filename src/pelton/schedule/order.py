"""The interface of an order: who is tried first, who ranks first while it runs, and who gives way when blocks run out;
and what several orders have in common.

It decides nothing else. Invariant: whatever it says changes when a request is computed, and none of its tokens.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pelton.schedule.tracked import NewRequest, Tracked

LOOKED_AT = 1024  # of the waiting ones, by rank, are put into an order of their own; those behind keep their ranks


@dataclass(frozen=True, slots=True)
class QueueView:
    """What an order may know besides the requests: `now` in seconds of the engine's clock, and how many leading tokens
    of a waiting request are `cached` (as of some steps ago; 0 of one that is not among the first).
    """

    now: float
    cached: Callable[[Tracked], int]


class Order(Protocol):
    """Ranks must differ between requests, so that the order is total and somebody is always first.

    `heeds_priority`, `heeds_owner`: whether it looks at requests' priorities, and at whose they are; where it does not,
    no priorities and no weights may be given. `heeds_cache`: whether without a prefix cache it is no order of its own.
    """

    heeds_priority: ClassVar[bool] = False
    heeds_owner: ClassVar[bool] = False
    heeds_cache: ClassVar[bool] = False

    @abstractmethod
    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        """Smaller goes first. Asked once, when the request comes as the `number`-th: who is ahead stays ahead."""
        ...

    @abstractmethod
    def victim(self, running: Sequence[Tracked]) -> int:
        """Which of these (in rank order, never empty) loses its blocks: its place in the sequence."""
        ...

    def queue(self, waiting: Sequence[Tracked], view: QueueView) -> Iterable[Tracked]:
        """In which order the waiting ones (given by rank) are tried for admission: all of them, each once.

        It may be read only in part.
        """
        return waiting

    def served(self, request: Tracked, tokens: int) -> None:
        """So many tokens of the request were computed that had not been before; told at each commit."""

    def weigh(self, weights: Mapping[str, float]) -> None:
        """How much more than others some owners are to get; asked of an order that heeds owners, before all else."""


class ByArrival(Order):
    """What most orders have in common: while they run the first to come ranks first, and the last to come gives way
    first.
    """

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        return (request.arrival, number)

    def victim(self, running: Sequence[Tracked]) -> int:
        return len(running) - 1


class ByShiftedArrival(ByArrival):
    """Waiting requests are tried as if they had come earlier or later than they did: a bounded shift is ageing."""

    @abstractmethod
    def shift(self, request: Tracked, view: QueueView) -> float:
        """So many seconds later; bounded."""
        ...

    def queue(self, waiting: Sequence[Tracked], view: QueueView) -> Iterable[Tracked]:
        def place(request: Tracked) -> tuple[float, tuple[float, ...]]:
            return request.asked.arrival + self.shift(request, view), request.rank

        return (*sorted(waiting[:LOOKED_AT], key=place), *waiting[LOOKED_AT:])
