"""Round to nearest: integer codes of rows of numbers, each group by its own extremes. It looks at no data but weights.

A group's scale is rounded to what the format stores before codes are computed, so that codes suit the stored scale.
Invariant: a row's bytes depend on that row alone, so rows may be quantised in any portions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pelton.core.errors import CheckpointError
from pelton.program.encode import encode
from pelton.program.formats import FORMATS, Bytes, Floats
from pelton.program.weights import TensorSource, identity_of

# (bits, elements that share a scale or 0 for a row, with a minimum) -> format
_FORMATS = {
    (8, 0, False): "INT8",
    (8, 32, False): "Q8_0",
    (8, 64, False): "INT8_64",
    (8, 128, False): "INT8_128",
    (4, 32, False): "Q4_0",
    (4, 64, False): "INT4_64",
    (4, 128, False): "INT4_128",
    (4, 32, True): "Q4_1",
    (4, 64, True): "INT4M_64",
    (4, 128, True): "INT4M_128",
}
FALLBACKS = (64, 32)
PORTION = 1 << 18  # numbers that are quantised at once, so that the temporary arrays stay in the processor's cache
SCALE_BITS = 7  # of a scale with a minimum: times a zero point of 4 bits it fits a half-precision number's 11
REMEDY = "A model with such numbers cannot be quantised."


@dataclass(frozen=True, slots=True)
class Rounding:
    """`bits` 8 or 4; `group`: elements that share a scale, 0 for whole rows; `minimum`: of 4 bits, codes count from
    the group's least number.
    """

    bits: int
    group: int
    minimum: bool = False

    @property
    def format(self) -> str:
        """The storage format of its codes."""
        return _FORMATS[self.bits, self.group, self.minimum]

    def fitting(self, cols: int) -> "Rounding | None":
        """As asked for, or with the largest smaller group that divides the columns; None where none does."""
        if not self.group or cols % self.group == 0:
            return self
        smaller = [group for group in FALLBACKS if group < self.group and cols % group == 0]
        return replace(self, group=smaller[0]) if smaller else None


def quantise_rows(numbers: Floats, rounding: Rounding) -> Bytes:
    """uint8 [rows, bytes of a row] in the rounding's format, from fp32 [rows, cols], which must be finite.

    Scales, by the error of weights drawn from a normal or Laplace distribution and of a trained model's:
    - 8 bits: the largest magnitude / 127, codes -127 to 127;
    - 4 bits: the number of largest magnitude, with its sign, / -8, codes -8 to 7 (its error is 12 % below that of the
      largest magnitude / 7, which leaves a code unused);
    - 4 bits with a minimum: a fifteenth of the range, which is made to hold 0; codes count from -scale * zero point, a
      whole number of 0 to 15. Scales have 7 bits, so that this minimum is exact in half precision (which costs 0.02 %
      of the error), and a zero stays a zero.
    ValueError for numbers too large for half-precision scales.
    """
    rows = len(numbers)
    groups = numbers.reshape(rows, -1, rounding.group or numbers.shape[1])
    zeros = None
    if rounding.minimum:
        least, most = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
        scale = _few_bits((most - least) / np.float32(15))
        zeros = np.rint(np.divide(-least, scale, out=np.zeros_like(scale), where=scale != 0))
        low, high = 0, 15
    elif rounding.bits == 4:
        places = np.abs(groups).argmax(-1)[..., None]
        scale, low, high = _halved(np.take_along_axis(groups, places, -1)[..., 0] / np.float32(-8)), -8, 7
    else:
        scale, low, high = np.abs(groups).max(-1) / np.float32(127), -127, 127
        scale = _halved(scale) if rounding.group else _normal(scale)
    codes = np.divide(groups, scale[..., None], out=np.zeros_like(groups), where=scale[..., None] != 0)
    np.rint(codes, out=codes)
    minimum = None
    if zeros is not None:
        zeros = np.minimum(zeros, np.float32(15))
        codes += zeros[..., None]
        minimum = -(scale * zeros)
    np.clip(codes, low, high, out=codes)
    return encode(rounding.format, codes.astype(np.int16).reshape(rows, -1), scale, minimum)


def _halved(scale: Floats) -> Floats:
    with np.errstate(over="ignore"):
        halves: Floats = scale.astype(np.float16).astype(np.float32)
    if not np.isfinite(halves).all():
        raise ValueError("numbers too large for a half-precision scale")
    return halves


def _normal(scale: Floats) -> Floats:
    """Denormals count as zero when a model is computed, so they are none here."""
    return np.where(scale < np.finfo(np.float32).tiny, np.float32(0), scale)


def _few_bits(scale: Floats) -> Floats:
    parts, exponents = np.frexp(scale)
    steps = np.float32(1 << SCALE_BITS)
    return _halved(np.ldexp(np.rint(parts * steps) / steps, exponents))


@dataclass(frozen=True, slots=True)
class RoundedSource:
    """A dense tensor [rows, cols] as its codes, made when they are read; see program.weights.TensorSource."""

    source: TensorSource
    rounding: Rounding

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def format(self) -> str:
        return self.rounding.format

    def read(self) -> memoryview:
        """The codes, in memory of their own; the tensor's pages are let go.

        CheckpointError for numbers that have no codes.
        """
        rows, cols = self.shape
        codes = np.empty((rows, FORMATS[self.format].row_bytes(cols)), np.uint8)
        at = 0
        for part in self.portions():
            codes[at : at + len(part)] = part
            at += len(part)
        return codes.reshape(-1).data

    def portions(self) -> Iterator[Bytes]:
        """The codes of some rows after the other, uint8 [some, bytes of a row]."""
        rows, cols = self.shape
        dense = FORMATS[self.source.format]
        some = max(PORTION // cols, 1)
        raw = np.frombuffer(self.source.read(), np.uint8).reshape(rows, dense.row_bytes(cols))
        try:
            for start in range(0, rows, some):
                part = raw[start : start + some]
                numbers = dense.decode(np.ascontiguousarray(part).reshape(-1), len(part), cols)
                yield self._quantised(numbers)
        finally:
            del raw
            self.source.release()

    def _quantised(self, numbers: Floats) -> Bytes:
        if not np.isfinite(numbers).all():
            raise CheckpointError(f"Tensor {self.name!r} has weights that are NaN or infinite.", REMEDY)
        try:
            return quantise_rows(numbers, self.rounding)
        except ValueError as error:
            raise CheckpointError(f"Tensor {self.name!r}: {error}.", REMEDY) from error

    def release(self) -> None:
        """Lets the dense tensor's pages go."""
        self.source.release()

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        """See program.weights.Identified."""
        dense = identity_of(self.source, read=read, advance=advance)
        return None if dense is None else f"{dense} {self.source.format} rounded to {self.format}"
