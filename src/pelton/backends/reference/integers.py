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
LARGEST, GROUP = 127, 128  # numbers of 8 bits, columns that share their scale
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
    rounded, scales = eight_bits(x)
    total = torch.zeros(len(x), len(codes.numbers))
    for group in range(scales.shape[1]):
        end = min((group + 1) * GROUP, x.shape[1])
        total = fma(scales[:, group, None], _of_group(rounded, codes, group * GROUP, end), total)
    return flushed(total * codes.scales[:, 0]) if codes.whole_rows else total


def _of_group(rounded: Tensor, codes: Codes, first: int, end: int) -> Tensor:
    """What columns first .. end - 1, which share a scale, give: fp32 [T, rows], the unit being that scale."""
    if codes.whole_rows:
        return (rounded[:, first:end] @ codes.numbers[:, first:end].T).float()
    acc = torch.zeros(len(rounded), len(codes.numbers))
    for start in range(first, end, codes.unit):
        unit, own = start // codes.unit, slice(start, start + codes.unit)
        acc = fma(codes.scales[:, unit], (rounded[:, own] @ codes.numbers[:, own].T).float(), acc)
        if codes.minima is not None:
            acc = fma(codes.minima[:, unit], rounded[:, own].sum(1, keepdim=True).float(), acc)
    return acc


def eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 in fp64 and the scales of each row [T, groups]; NaN where a row is not finite."""
    x = flushed(x.float())
    finite = torch.isfinite(x).all(1, keepdim=True)
    largest = torch.stack([x[:, at : at + GROUP].abs().amax(1) for at in range(0, x.shape[1], GROUP)], 1)
    scales = flushed(largest / LARGEST)
    # A scale of zero: nothing of the group is large enough to count.
    factors = torch.where(finite & (scales > 0), LARGEST / largest, 0.0)
    numbers = flushed(x * factors.repeat_interleave(GROUP, 1)[:, : x.shape[1]])
    return torch.where(finite, numbers, 0.0).round().double(), torch.where(finite, scales, torch.nan)


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
