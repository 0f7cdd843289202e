"""Rotary embedding as ops: one table of cosines and sines per step, applied to queries and keys."""

import numpy as np

from pelton.core.errors import CheckpointError
from pelton.layers import ROPES
from pelton.layers.rope import RopeParameters, Rotation
from pelton.program.builder import Builder
from pelton.program.formats import FORMATS
from pelton.program.op import Attr
from pelton.program.weights import TensorSource

DIVISORS = (1e-6, 1e6)  # least and largest; those of published models are 1 to 64


def rotation_of(
    parameters: RopeParameters, length: int | None = None, divisors: TensorSource | None = None
) -> Rotation:
    """Frequencies by the parameters' kind, for texts of at most `length` tokens (None: of `longest_text`).

    `divisors` [dim / 2], where a file brings them, divide each frequency.

    Raises CheckpointError for divisors of another shape, or that are no positive numbers of sensible size.
    """
    values = None if divisors is None else read_divisors(divisors, parameters.dim // 2)
    rotation = ROPES.get(parameters.kind)().rotation(parameters, length or longest_text(parameters))
    if values is None:
        return rotation
    pairs = zip(rotation.inverse_frequencies, values, strict=True)
    return Rotation(tuple(frequency / divisor for frequency, divisor in pairs), rotation.factor)


def longest_text(parameters: RopeParameters) -> int:
    """Tokens of the longest text that the parameters are made for: the model's context, scaling included."""
    return ROPES.get(parameters.kind)().longest(parameters)


def stretched_from(parameters: RopeParameters, length: int | None) -> int | None:
    """Where short texts too get the frequencies of long ones, because a request may have `length` tokens (as for
    rotation_of): the tokens of the longest text that would have had its own. Else None.
    """
    short = ROPES.get(parameters.kind)().unstretched(parameters)
    return None if short is None or (length or longest_text(parameters)) <= short else short


def read_divisors(tensor: TensorSource, pairs: int) -> list[float]:
    """Numbers that divide the frequencies of so many pairs.

    Raises CheckpointError for another shape, or for numbers that are not positive and of sensible size.
    """
    if tuple(tensor.shape) != (pairs,):
        raise CheckpointError(
            f"Tensor {tensor.name!r} has shape {tuple(tensor.shape)}, but the config asks for {(pairs,)}.",
            "The file is damaged, or its config is not this model's.",
        )
    values = FORMATS[tensor.format].decode(tensor.read(), 1, pairs)[0]
    least, most = DIVISORS
    wrong = np.flatnonzero(~((values >= least) & (values <= most)))  # NaN is wrong too
    if wrong.size:
        raise CheckpointError(
            f"Tensor {tensor.name!r} holds {values[wrong[0]]:g} at place {wrong[0]}, but rotary frequencies are "
            f"divided by its numbers.",
            f"They must be from {least:g} to {most:g}: the file is damaged, fetch it again.",
        )
    found: list[float] = values.tolist()
    return found


def rope_table(builder: Builder, positions: str, rotation: Rotation, name: str = "rope") -> str:
    """Adds the table of all rotated pairs for the step's positions, [T, dim]; returns its name."""
    attrs: dict[str, Attr] = {"inverse_frequencies": rotation.inverse_frequencies, "factor": rotation.factor}
    return builder.op("rope_table", (positions,), (name,), attrs=attrs)[0]


def rotate(builder: Builder, x: str, table: str, heads: int, *, interleaved: bool = False) -> str:
    """Rotates the first dim numbers, dim = those of the table, of each head of x [T, heads x head_dim].

    Pairs are (j, j + dim / 2), or (2j, 2j + 1) where `interleaved`. Returns the new value's name.
    """
    attrs = {"heads": heads, "interleaved": interleaved}
    return builder.op("rope", (x, table), (f"{x}.rotated",), attrs=attrs)[0]


def half_split_rows(heads: int, head_dim: int) -> tuple[int, ...]:
    """Row order for files that keep rotary pairs side by side, (2j, 2j + 1), where ops want (j, j + head_dim / 2)."""
    half = head_dim // 2
    return tuple(head * head_dim + 2 * j + part for head in range(heads) for part in range(2) for j in range(half))
