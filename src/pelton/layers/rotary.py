"""Rotary embedding as ops: one table of cosines and sines per step, applied to queries and keys."""

from pelton.layers import ROPES
from pelton.layers.rope import RopeParameters, Rotation
from pelton.program.builder import Builder
from pelton.program.formats import FORMATS
from pelton.program.op import Attr
from pelton.program.weights import TensorSource


def rotation_of(parameters: RopeParameters, divisors: TensorSource | None = None) -> Rotation:
    """Frequencies by the parameters' kind; `divisors` [dim / 2], where a file brings them, divide each frequency."""
    rotation = ROPES.get(parameters.kind)().rotation(parameters)
    if divisors is None:
        return rotation
    values = FORMATS[divisors.format].decode(divisors.read(), 1, divisors.shape[0])[0].tolist()
    pairs = zip(rotation.inverse_frequencies, values, strict=True)
    return Rotation(tuple(frequency / divisor for frequency, divisor in pairs), rotation.factor)


def rope_table(builder: Builder, positions: str, rotation: Rotation, name: str = "rope") -> str:
    """Adds the table of all rotated pairs for the step's positions, [T, dim]; returns its name."""
    attrs: dict[str, Attr] = {"inverse_frequencies": rotation.inverse_frequencies, "factor": rotation.factor}
    return builder.op("rope_table", (positions,), (name,), attrs=attrs)[0]


def rotate(builder: Builder, x: str, table: str, heads: int) -> str:
    """Rotates the pairs (j, j + dim / 2) of each head of x [T, heads x head_dim]; returns the new value's name."""
    return builder.op("rope", (x, table), (f"{x}.rotated",), attrs={"heads": heads, "interleaved": False})[0]


def half_split_rows(heads: int, head_dim: int) -> tuple[int, ...]:
    """Row order for files that keep rotary pairs side by side, (2j, 2j + 1), where ops want (j, j + head_dim / 2)."""
    half = head_dim // 2
    return tuple(head * head_dim + 2 * j + part for head in range(heads) for part in range(2) for j in range(half))
