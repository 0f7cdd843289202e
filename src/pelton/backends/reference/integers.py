"""Products of rows that are rounded to 8 bits with integer codes, by the letter of docs/numerics.md, in torch.

What it is not: a way to do it fast. Invariant: equal rows give the bits of every other backend: sums of integers are
exact in fp64, and what is an fma is rounded once.
"""

from dataclasses import dataclass

import numpy as np
import torch

from pelton.program.formats import FORMATS
from pelton.program.weights import Storage

Tensor = torch.Tensor
LARGEST = 127
SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix [rows, cols] of integers in fp64; scales, minima: fp32 [rows, units], each of `unit` columns."""

    numbers: Tensor
    scales: Tensor
    minima: Tensor | None
    unit: int
    whole_rows: bool

    @classmethod
    def of(cls, storage: Storage) -> "Codes":
        """Reads the storage's bytes."""
        form = FORMATS[storage.format]
        assert form.codes is not None, storage.format
        rows, cols = storage.rows, storage.cols
        coded = form.codes(form.blocks(storage.source.read(), rows, cols))
        parts = [coded.codes.reshape(rows, cols), coded.scale.reshape(rows, -1)]
        if coded.minimum is not None:
            parts.append(coded.minimum.reshape(rows, -1))
        order = slice(None) if storage.row_order is None else np.asarray(storage.row_order)
        numbers, scales, *minima = (torch.from_numpy(np.array(part[order], np.float32)) for part in parts)
        storage.source.release()
        units = scales.shape[1]
        return cls(numbers.double(), scales, minima[0] if minima else None, cols // units, form.group == 0)


def product(x: Tensor, codes: Codes) -> Tensor:
    """fp32 x [T, cols], any numbers, times the matrix: fp32 [T, rows]."""
    rounded, scale = eight_bits(x)
    acc = torch.zeros(len(x), len(codes.numbers))
    for unit in range(codes.scales.shape[1]):
        own = slice(unit * codes.unit, (unit + 1) * codes.unit)
        sums = (rounded[:, own] @ codes.numbers[:, own].T).float()
        if codes.whole_rows:
            acc = flushed(sums * codes.scales[:, 0])
            break
        acc = fma(codes.scales[:, unit], sums, acc)
        if codes.minima is not None:
            acc = fma(codes.minima[:, unit], rounded[:, own].sum(1, keepdim=True).float(), acc)
    return flushed(acc * scale)


def eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 in fp64 and the scale of each row [T, 1]; NaN where a row is not finite."""
    x = flushed(x.float())
    largest = x.abs().amax(1, keepdim=True)
    finite = torch.isfinite(x).all(1, keepdim=True)
    scale = flushed(largest / LARGEST)
    # A scale of zero: nothing of the row is large enough to count.
    factor = torch.where(finite & (scale > 0), LARGEST / largest, 0.0)
    numbers = torch.where(finite, flushed(x * factor), 0.0).round()
    return numbers.double(), torch.where(finite, scale, torch.nan)


def flushed(x: Tensor) -> Tensor:
    """Denormals as zeros of their sign."""
    return torch.where(x.abs() < SMALLEST_NORMAL, x * 0.0, x)


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """fp32 a * b + c, rounded once: the exact product's sum is rounded to odd in fp64, so that the second rounding is
    right.
    """
    product = flushed(a).double() * b.double()
    addend = c.double().expand_as(product)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.clone().view(torch.int64)
    towards = torch.where((lost > 0) == (total > 0), 1, -1)
    inexact = (lost != 0) & torch.isfinite(total) & (bits % 2 == 0)
    return flushed(torch.where(inexact, bits + towards, bits).view(torch.float64).float())
