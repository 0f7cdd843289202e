"""Op records and the interface of the rules that belong to each kind. Kernels live in the backends, by kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pelton.program.states import State
from pelton.program.values import Dim, StepShape, Value
from pelton.program.weights import Storage, WeightView

Attr = int | float | str | bool | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: names of values, of weight views and of a state, and constants. Its kind is a name in OPS."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    state: str | None = None
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    def integer(self, name: str, default: int = 0) -> int:
        value = self.attrs.get(name, default)
        assert isinstance(value, int), (self.kind, name, value)
        return value

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.attrs.get(name, default)
        assert isinstance(value, (int, float)), (self.kind, name, value)
        return float(value)

    def text(self, name: str, default: str = "") -> str:
        value = self.attrs.get(name, default)
        assert isinstance(value, str), (self.kind, name, value)
        return value


@dataclass(frozen=True, slots=True)
class Cost:
    """What an op does in one step: floating-point operations (a multiply-add counts 2) and bytes of memory moved."""

    flops: int = 0
    read: int = 0
    written: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.read + other.read, self.written + other.written)


@dataclass(frozen=True, slots=True)
class Tables:
    """What the rules look names up in: one module's storages, weights and states and one entry's values.

    `exact`: fp32 arithmetic; else matrices of F16 and F32 are held in bf16, and so is the cache.
    """

    storages: Mapping[str, Storage]
    weights: Mapping[str, WeightView]
    states: Mapping[str, State]
    values: Mapping[str, Value]
    exact: bool = False

    @property
    def kv_element(self) -> int:
        """Bytes of one cached number."""
        return 4 if self.exact else 2

    def matrix_bytes(self, weight: str) -> int:
        """Bytes of a matrix as it is held in memory."""
        storage = self.storage(weight)
        rounded = storage.format in ("F16", "F32") and not self.exact
        return 2 * storage.rows * storage.cols if rounded else storage.nbytes

    def storage(self, weight: str) -> Storage:
        """The storage behind a weight view."""
        return self.storages[self.weights[weight].storage]


class OpRule(Protocol):
    """Rules of one op kind."""

    def shapes(self, op: Op, tables: Tables) -> tuple[tuple[Dim, ...], ...]:
        """Shapes of the outputs; raises ValueError where the inputs do not fit."""
        ...

    def cost(self, op: Op, tables: Tables, step: StepShape) -> Cost:
        """FLOPs and bytes of the op in a step of these sizes."""
        ...

    def lower(self, op: Op) -> list[Op] | None:
        """The same in simpler ops (temporaries are named after the op's outputs), or None for a primitive."""
        ...
