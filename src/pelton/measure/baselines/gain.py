"""Gain: one technique's figure beside that of its baseline, both measured in turns. It measures nothing itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Gain:
    """`ours` and `baseline`: medians, in `unit`; `more_is_better` says which way. `details`: further figures by name.

    `same`: whether all answers were equal, token for token; None where none were drawn.
    """

    name: str
    baseline_name: str
    unit: str
    ours: float
    baseline: float
    more_is_better: bool = True
    details: Mapping[str, float] = field(default_factory=dict)
    same: bool | None = None

    @property
    def ratio(self) -> float:
        """How many times better ours is."""
        better, worse = (self.ours, self.baseline) if self.more_is_better else (self.baseline, self.ours)
        return better / worse if worse else float("inf")

    def record(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "gain": self.name,
            "baseline": self.baseline_name,
            "unit": self.unit,
            "ours": self.ours,
            "without": self.baseline,
            "ratio": self.ratio,
            "same_answers": self.same,
            **self.details,
        }


def in_turns(repeats: int, baseline: Callable[[], T], ours: Callable[[], U]) -> tuple[list[T], list[U]]:
    """(of the baseline, ours), each so many times, one after the other."""
    theirs, own = list[T](), list[U]()
    for _ in range(repeats):
        theirs.append(baseline())
        own.append(ours())
    return theirs, own


def middle(values: list[float]) -> float:
    """The median."""
    return float(median(values))
