"""Integer products written out in numpy: rows rounded to 8 bits, exact sums, then fp32 as docs/numerics.md pins it.

Nothing here knows kernels or packed layouts. What is written as fma is rounded once.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.native.probe import BLOCK, FORMAT_NUMBERS, GUARD, PANEL, Floats, Probe, Weights, padded

Ints = NDArray[np.int32]
Codes = NDArray[np.int8]
TINY = np.finfo(np.float32).tiny
EIGHTS = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 128


@dataclass(frozen=True, slots=True)
class IntRows:
    """Rows [n, padded(cols)] in order and with the even ones of each eight first, scales [n, groups of 128 columns],
    sums [n, 3 * blocks].
    """

    fours: Codes
    eights: Codes
    scales: Floats
    sums: Ints

    def part(self, rows: slice | list[int]) -> "IntRows":
        """Some of the rows."""
        fours, eights = np.ascontiguousarray(self.fours[rows]), np.ascontiguousarray(self.eights[rows])
        return IntRows(fours, eights, np.ascontiguousarray(self.scales[rows]), np.ascontiguousarray(self.sums[rows]))


def flushed(x: Floats) -> Floats:
    """Denormals as zeros of their sign."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x).astype(np.float32)


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once: the sum in fp64 is rounded to odd, so that rounding it again is harmless."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = np.broadcast_to(c.astype(np.float64), product.shape)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = np.ascontiguousarray(total).view(np.int64)
    towards = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & (bits % 2 == 0) & np.isfinite(total), bits + towards, bits)
    return flushed(odd.view(np.float64).astype(np.float32))


def rounded(x: Floats) -> IntRows:
    """x [n, cols], finite or not, without a norm."""
    rows, cols = x.shape
    x = flushed(x)
    numbers = np.zeros((rows, padded(cols)), np.int8)
    finite = np.asarray(np.isfinite(x).all(axis=1))
    scales = np.zeros((rows, -(-cols // GROUP)), np.float32)
    for t, group in np.ndindex(*scales.shape):
        own = slice(group * GROUP, min((group + 1) * GROUP, cols))
        largest = np.abs(x[t, own]).max()
        scales[t, group] = flushed(largest / np.float32(127))
        if finite[t] and scales[t, group] > 0:
            numbers[t, own] = np.rint(flushed(x[t, own] * (np.float32(127) / largest))).astype(np.int8)
    eights = np.ascontiguousarray(numbers.reshape(rows, -1, 8)[:, :, EIGHTS].reshape(rows, -1))
    halves = numbers.reshape(rows, -1, BLOCK // 2).sum(axis=2, dtype=np.int32)
    blocks = halves.reshape(rows, -1, 2).sum(axis=2, dtype=np.int32)
    sums = np.concatenate((blocks, halves), axis=1)
    return IntRows(numbers, eights, np.where(finite[:, None], scales, np.float32(np.nan)), sums)


def product(w: Weights, x: IntRows) -> Floats:
    """[rows, outputs]: what a kernel must give to the bit."""
    assert w.scale is not None
    numbers, codes = x.fours[:, : w.cols].astype(np.int64), w.codes.astype(np.int64)
    total = np.zeros((len(numbers), w.rows), np.float32)
    whole = w.from_format == "INT8"  # one scale for a row of codes
    with np.errstate(invalid="ignore"):
        for group in range(x.scales.shape[1]):
            end, size = min((group + 1) * GROUP, w.cols), GROUP if whole else w.unit
            acc = np.zeros_like(total)
            for first in range(group * GROUP, end, size):
                own, unit = slice(first, min(first + size, end)), first // size
                sums = (numbers[:, own] @ codes[:, own].T).astype(np.float32)
                acc = sums if whole else fma(np.broadcast_to(flushed(w.scale[:, unit]), acc.shape), sums, acc)
                if w.minimum is not None:
                    of_x = np.broadcast_to(numbers[:, own].sum(axis=1).astype(np.float32)[:, None], acc.shape)
                    acc = fma(np.broadcast_to(flushed(w.minimum[:, unit]), acc.shape), of_x, acc)
            total = fma(np.broadcast_to(x.scales[:, group, None], acc.shape), acc, total)
        return flushed(total * w.scale[:, 0]) if whole else total


class IntProbe:
    """The integer kernels of one instruction set."""

    def __init__(self, probe: Probe) -> None:
        self._library, self._isa = probe.door
        self.name = probe.name

    def __repr__(self) -> str:
        return self.name

    def prepare(self, x: Floats, gain: Floats | None = None, eps: float = 1e-5) -> IntRows:
        """x [n, cols] rounded to 8 bits."""
        rows, cols = x.shape
        width, blocks = padded(cols), padded(cols) // BLOCK
        fours, eights = np.full((2, rows, width + 1), 99, np.int8)
        scales, sums = np.full((rows, -(-cols // GROUP) + 1), GUARD), np.full((rows, 3 * blocks + 1), -12345, np.int32)
        for t in range(rows):
            self._library.int8_probe_prepare(
                self._isa,
                _at(np.ascontiguousarray(x[t])),
                None if gain is None else _at(gain),
                ctypes.c_float(eps),
                cols,
                _at(fours[t]),
                _at(eights[t]),
                _at(scales[t]),
                _at(sums[t]),
            )
        assert (fours[:, -1] == 99).all()
        assert (eights[:, -1] == 99).all()
        assert (scales[:, -1] == GUARD).all()
        assert (sums[:, -1] == -12345).all()
        return IntRows(*(np.ascontiguousarray(part[:, :-1]) for part in (fours, eights, scales, sums)))

    def matmul(self, w: Weights, x: IntRows, *, panels: int = 0) -> Floats:
        """[rows, outputs rounded up to panels]; `panels`: so many in a call, 0: all."""
        count = -(-w.rows // PANEL)
        out = np.full((len(x.fours), count * PANEL + 3), GUARD)
        for first in range(0, count, panels or count):
            self._library.int8_probe_matmul(
                self._isa,
                FORMAT_NUMBERS[w.format],
                w.rows,
                w.cols,
                _at(w.packed),
                first,
                min(panels or count, count - first),
                _at(x.fours),
                _at(x.eights),
                ctypes.c_size_t(x.fours.shape[1]),
                _at(x.scales),
                ctypes.c_size_t(x.scales.shape[1]),
                _at(x.sums),
                ctypes.c_size_t(x.sums.shape[1]),
                len(x.fours),
                _at(out[:, first * PANEL :]),
                ctypes.c_size_t(out.shape[1]),
            )
        assert (out[:, count * PANEL :] == GUARD).all()
        return np.ascontiguousarray(out[:, : count * PANEL])


def _at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
