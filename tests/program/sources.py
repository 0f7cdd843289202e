"""Tensors from arrays, for modules built in tests: dense ones with given numbers, quantised ones from random codes."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pelton.program.formats import FORMATS

Floats = NDArray[np.float32]
DENSE = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
SCALES = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}  # fp16 numbers before the codes of a block


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


def drawn(name: str, shape: tuple[int, ...], form: str = "F32", seed: int = 0) -> ArraySource:
    """Random weights of any format; numbers are of the size of 1 / sqrt(columns)."""
    rng = np.random.default_rng([seed, len(name), *shape])
    width = shape[-1] ** -0.5
    if form in DENSE:
        return dense(name, rng.normal(0, width, shape), form)
    blocks = shape[-1] // FORMATS[form].block * (shape[0] if len(shape) == 2 else 1)
    codes = rng.integers(0, 256, (blocks, FORMATS[form].block_bytes), np.uint8)
    scale = width / (64 if form == "Q8_0" else 4)
    scales = rng.uniform(-scale, scale, (blocks, SCALES[form])).astype(np.float16)
    codes[:, : 2 * SCALES[form]] = scales.view(np.uint8)
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
