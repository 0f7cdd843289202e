"""The interface of a rotary scaling: from a base and its options to inverse frequencies. No kind is named here.

Frequencies are made with decimal arithmetic, not with the C library, so that every machine gets the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal, localcontext
from typing import Protocol

DIGITS = Context(prec=40)


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """`dim` rotated numbers of a head (even), base `theta`, and what a scaling asks for by its name in configs."""

    kind: str
    theta: float
    dim: int
    options: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rotation:
    """fp64 radians per position for each of dim / 2 pairs; `factor` multiplies cosines and sines."""

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0


class RopeKind(Protocol):
    """One way to scale rotary frequencies. `options`: the keys it needs in RopeParameters.options."""

    @property
    def options(self) -> tuple[str, ...]: ...

    def rotation(self, parameters: RopeParameters) -> Rotation: ...


def base_frequencies(theta: float, dim: int) -> list[Decimal]:
    """theta^(-2j / dim) for j = 0 .. dim / 2 - 1, to 40 digits (arXiv 2104.09864)."""
    with localcontext(DIGITS):
        return [Decimal(theta) ** (Decimal(-2 * j) / Decimal(dim)) for j in range(dim // 2)]


def rounded(frequencies: list[Decimal]) -> tuple[float, ...]:
    """Each to the nearest fp64 number."""
    return tuple(float(frequency) for frequency in frequencies)
