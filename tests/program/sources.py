"""Tensors from arrays, for modules built in tests: dense ones with given numbers, quantised ones from random codes."""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pelton.program.formats import FORMATS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
DENSE = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
# Where a block has half-precision numbers; all its other bytes may be anything.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,),
    "INT8_64": (0,), "INT8_128": (0,), "INT4_64": (0,), "INT4_128": (0,), "INT4M_64": (0, 2), "INT4M_128": (0, 2),
}  # fmt: skip
# About the size of a random code times what its half-precision number is multiplied with.
SPREAD = {
    "Q4_0": 4, "Q4_1": 4, "Q5_0": 8, "Q5_1": 8, "Q8_0": 64, "IQ4_NL": 64, "Q2_K": 16,
    "Q3_K": 32, "Q4_K": 256, "Q5_K": 512, "Q6_K": 1024, "IQ4_XS": 1024,
    "INT8": 64, "INT8_64": 64, "INT8_128": 64, "INT4_64": 4, "INT4_128": 4, "INT4M_64": 4, "INT4M_128": 4,
}  # fmt: skip


@dataclass(frozen=True)
class ArraySource:
    """A TensorSource over bytes in memory."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: bytes

    def read(self) -> memoryview:
        return memoryview(self.data)

    def release(self) -> None:
        pass

    @property
    def numbers(self) -> Floats:
        """What the bytes stand for, fp32 of `shape`."""
        rows, cols = self.shape if len(self.shape) == 2 else (1, *self.shape)
        return FORMATS[self.format].decode(self.read(), rows, cols).reshape(self.shape)


def dense(name: str, numbers: NDArray[np.floating], form: str = "F32") -> ArraySource:
    """These numbers, rounded to a dense format."""
    return ArraySource(name, numbers.shape, form, np.ascontiguousarray(numbers).astype(DENSE[form]).tobytes())


def random_blocks(
    form: str, count: int, rng: np.random.Generator, halves: Callable[[tuple[int, int]], NDArray[np.float64]]
) -> Bytes:
    """uint8 [count, block bytes]: random bytes, but the half-precision numbers, [count, numbers], are `halves`."""
    blocks = rng.integers(0, 256, (count, FORMATS[form].block_bytes), np.uint8)
    numbers = halves((count, len(HALVES[form]))).astype(np.float16)
    for i, at in enumerate(HALVES[form]):
        blocks[:, at : at + 2] = np.ascontiguousarray(numbers[:, i : i + 1]).view(np.uint8)
    return blocks


def drawn(name: str, shape: tuple[int, ...], form: str = "F32", seed: int = 0) -> ArraySource:
    """Random weights of any format; numbers are of the size of 1 / sqrt(columns)."""
    rng = np.random.default_rng([seed, len(name), *shape])
    width = shape[-1] ** -0.5
    if form in DENSE:
        return dense(name, rng.normal(0, width, shape), form)
    rows = shape[0] if len(shape) == 2 else 1
    scale = width / SPREAD[form]
    if FORMATS[form].head_bytes:
        heads = rng.uniform(-scale, scale, (rows, 1)).astype(np.float32)
        codes = np.concatenate((heads.view(np.uint8), rng.integers(0, 256, (rows, shape[-1]), np.uint8)), axis=1)
        return ArraySource(name, shape, form, codes.tobytes())
    blocks = shape[-1] // FORMATS[form].block * rows
    codes = random_blocks(form, blocks, rng, lambda size: rng.uniform(-scale, scale, size))
    return ArraySource(name, shape, form, codes.tobytes())


@dataclass(frozen=True)
class ShapeSource:
    """A tensor of which only the shape matters."""

    name: str
    shape: tuple[int, ...]
    format: str = "BF16"

    def read(self) -> memoryview:
        raise AssertionError(f"{self.name} is read")

    def release(self) -> None:
        raise AssertionError(f"{self.name} is released")
