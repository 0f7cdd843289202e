"""Weight formats as they stand in files: sizes, and decoding to fp32 as the specification of every kernel.

Block formats are GGUF's. Decoding is for oracles, vectors and conversion, not for the step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`block` elements along a row share `block_bytes` bytes.

    `decode_blocks`: uint8 [rows, blocks, block_bytes] -> fp32 [rows, blocks, block].
    """

    name: str
    block: int
    block_bytes: int
    decode_blocks: Callable[[Bytes], Floats]

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row; `cols` must be a multiple of `block`."""
        if cols % self.block:
            raise ValueError(f"{self.name}: {cols} columns are not a multiple of {self.block}")
        return cols // self.block * self.block_bytes

    def decode(self, raw: memoryview, rows: int, cols: int) -> Floats:
        """fp32 [rows, cols] from the file's bytes."""
        blocks = np.frombuffer(raw, np.uint8).reshape(rows, cols // self.block, self.block_bytes)
        return self.decode_blocks(blocks).reshape(rows, cols)


def _as_f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float32)


def _as_f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _as_bf16(blocks: Bytes) -> Floats:
    values: Floats = np.ascontiguousarray(blocks).view(ml_dtypes.bfloat16).astype(np.float32)
    return values


def _half(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(codes: Bytes) -> Floats:
    """Sixteen bytes hold 32 codes: low nibbles are the first 16 elements, high ones the rest."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[..., 2:]) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[..., 4:]) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.float32)


FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat("F32", 1, 4, _as_f32),
        WeightFormat("F16", 1, 2, _as_f16),
        WeightFormat("BF16", 1, 2, _as_bf16),
        WeightFormat("Q4_0", 32, 18, _q4_0),
        WeightFormat("Q4_1", 32, 20, _q4_1),
        WeightFormat("Q8_0", 32, 34, _q8_0),
    )
}
