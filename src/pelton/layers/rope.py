"""The interface of a rotary scaling: from a base and its options to inverse frequencies. No kind is named here.

Frequencies are made with decimal arithmetic, not with the C library, so that every machine gets the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal, localcontext
from enum import Enum
from typing import Protocol

from pelton.core.errors import UnsupportedModelError

DIGITS = Context(prec=40)
TWO_PI = Decimal("6.283185307179586476925286766559005768394")
ORIGINAL_CONTEXT = "original_max_position_embeddings"  # the length that a model had before its positions were scaled

Option = float | bool | tuple[float, ...]


class Form(Enum):
    """What an option holds: a positive number, one that may be 0, one by which texts become longer and never shorter,
    true or false, or a number for each pair.
    """

    NUMBER = "a number"
    FROM_ZERO = "a number from 0"
    FROM_ONE = "a number from 1 (scaling makes longer texts possible, not shorter ones)"
    FLAG = "true or false"
    PAIRS = "a number for each rotated pair"


@dataclass(frozen=True, slots=True)
class RopeOption:
    """An option by its name in configs."""

    name: str
    form: Form = Form.NUMBER
    required: bool = True


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """`dim` rotated numbers of a head (even), base `theta`, and what a scaling asks for by its name in configs.

    `context`: the config's max_position_embeddings, which a scaling may stretch (RopeKind.longest).
    """

    kind: str
    theta: float
    dim: int
    context: int
    options: Mapping[str, Option] = field(default_factory=dict)

    def number(self, name: str) -> Decimal:
        """A required option, exactly. KeyError if it is missing."""
        return _decimal(self.options[name])

    def optional(self, name: str) -> Decimal | None:
        """The same for an option that may be missing."""
        return _decimal(self.options[name]) if name in self.options else None

    def pairs(self, name: str) -> tuple[Decimal, ...]:
        """A number for each of dim / 2 pairs; UnsupportedModelError where they are missing or are another number."""
        values = self.options.get(name, ())
        if not isinstance(values, tuple) or len(values) != self.dim // 2:
            found = len(values) if isinstance(values, tuple) else values
            raise UnsupportedModelError(
                f"The model's rotary scaling {self.kind!r} has {found} numbers of {name}, but {self.dim // 2} pairs.",
                "It must have one for each pair: the file is incomplete or of another model.",
            )
        return tuple(Decimal(value) for value in values)


@dataclass(frozen=True, slots=True)
class Rotation:
    """fp64 radians per position for each of dim / 2 pairs; `factor` multiplies cosines and sines."""

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0


class RopeKind(Protocol):
    """One way to scale rotary frequencies. `options`: what it takes in RopeParameters.options."""

    @property
    def options(self) -> tuple[RopeOption, ...]: ...

    def longest(self, parameters: RopeParameters) -> int:
        """Tokens of the longest text that these positions are made for."""
        ...

    def unstretched(self, parameters: RopeParameters) -> int | None:
        """Tokens of the longest text that has the frequencies of short ones; None: every length has the same."""
        ...

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        """Frequencies for texts of at most `length` tokens; where they depend on it they are frozen for it."""
        ...


def base_frequencies(theta: float | Decimal, dim: int) -> list[Decimal]:
    """theta^(-2j / dim) for j = 0 .. dim / 2 - 1, to 40 digits (arXiv 2104.09864)."""
    with localcontext(DIGITS):
        return [Decimal(theta) ** (Decimal(-2 * j) / Decimal(dim)) for j in range(dim // 2)]


def stretched_base(parameters: RopeParameters, times: Decimal) -> Decimal:
    """theta * times^(dim / (dim - 2)): the slowest pair turns `times` slower, the fastest as before."""
    if parameters.dim <= 2:
        raise UnsupportedModelError(
            f"The model's rotary scaling {parameters.kind!r} cannot stretch a head of which {parameters.dim} numbers "
            "are rotated.",
            "It needs at least two pairs.",
        )
    with localcontext(DIGITS):
        return Decimal(parameters.theta) * times ** (Decimal(parameters.dim) / Decimal(parameters.dim - 2))


def rounded(frequencies: list[Decimal]) -> tuple[float, ...]:
    """Each to the nearest fp64 number."""
    return tuple(float(frequency) for frequency in frequencies)


def _decimal(value: Option) -> Decimal:
    assert isinstance(value, (int, float)), value
    return Decimal(value)
