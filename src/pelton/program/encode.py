"""The opposite of a format's `codes`: bytes of rows from integer codes, scales and minima.

Of the formats that are written here alone. It chooses nothing: what scales and codes are is quant/'s, or a file's.
Invariant: formats' `codes` of what it gives are the numbers it was given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pelton.program.formats import FORMATS, Bytes, Floats

Codes = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format's codes stand. `pack`: uint8 [..., group] of codes less `least` -> their bytes."""

    least: int
    most: int
    pack: Callable[[Bytes], Bytes]
    minimum: bool = False


def _bytes(codes: Bytes) -> Bytes:
    """Two's complement of code - 128."""
    return codes ^ np.uint8(128)


def _pairs(codes: Bytes) -> Bytes:
    joined: Bytes = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return joined


def _halves(codes: Bytes) -> Bytes:
    joined: Bytes = codes[..., :16] | codes[..., 16:] << np.uint8(4)
    return joined


def _fives(codes: Bytes) -> Bytes:
    high = np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")
    return np.concatenate((high, _halves(codes & np.uint8(15))), axis=-1)


LAYOUTS: Mapping[str, Layout] = {
    "INT8": Layout(-128, 127, _bytes),
    "Q8_0": Layout(-128, 127, _bytes),
    "INT8_64": Layout(-128, 127, _bytes),
    "INT8_128": Layout(-128, 127, _bytes),
    "Q5_0": Layout(-16, 15, _fives),
    "Q4_0": Layout(-8, 7, _halves),
    "INT4_64": Layout(-8, 7, _pairs),
    "INT4_128": Layout(-8, 7, _pairs),
    "Q4_1": Layout(0, 15, _halves, minimum=True),
    "INT4M_64": Layout(0, 15, _pairs, minimum=True),
    "INT4M_128": Layout(0, 15, _pairs, minimum=True),
}


def encode(form: str, codes: Codes, scale: Floats, minimum: Floats | None = None) -> Bytes:
    """uint8 [rows, bytes of a row] of codes [rows, cols] (whole numbers) and fp32 scales and minima [rows, groups].

    ValueError for a code out of the format's range, and for scales and minima that it cannot hold exactly.
    """
    layout, rows = LAYOUTS[form], len(codes)
    if codes.size and not (layout.least <= codes.min() and codes.max() <= layout.most):
        raise ValueError(f"{form}: codes from {codes.min()} to {codes.max()}, not {layout.least} to {layout.most}")
    if layout.minimum != (minimum is not None):
        raise ValueError(f"{form}: {'no minima are' if layout.minimum else 'there are minima, which cannot be'} given")
    heads = [scale] if minimum is None else [scale, minimum]
    unsigned = (codes - np.int16(layout.least)).astype(np.uint8).reshape(rows, scale.shape[1], -1)
    wide = bool(FORMATS[form].head_bytes)
    parts = [
        head[..., None].view(np.uint8) if wide else _halved(form, head) for head in map(np.ascontiguousarray, heads)
    ]
    return np.concatenate((*parts, layout.pack(unsigned)), axis=-1).reshape(rows, -1)


def _halved(form: str, numbers: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    if not np.array_equal(halves, numbers):
        at = int(np.flatnonzero((halves != numbers).reshape(-1))[0])
        raise ValueError(f"{form}: {numbers.reshape(-1)[at]!r} is no half-precision number")
    return np.ascontiguousarray(halves)[..., None].view(np.uint8)
