"""Weight formats as they stand in storages: sizes, and what their bits mean, as the specification of every kernel.

Block formats are GGUF's and, for other groups, our own. Decoding is for oracles, vectors and conversion, not for the
step. Invariant: integer codes are exact in bf16, scales and minima in fp32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

# What the codes of IQ4_NL and IQ4_XS stand for: levels closer together around zero.
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


@dataclass(frozen=True, slots=True)
class Coded:
    """A weight is scale * code (+ minimum). The groups of a block that share a scale are equally long.

    `codes`: integers as fp32 [..., block]; `scale`, `minimum`: fp32 [..., groups].
    """

    codes: Floats
    scale: Floats
    minimum: Floats | None = None

    def values(self) -> Floats:
        """fp32 [..., block]: the product is rounded, then the sum."""
        products = self.scale[..., None] * self.codes.reshape(*self.scale.shape, -1)
        weights = products if self.minimum is None else products + self.minimum[..., None]
        return weights.reshape(self.codes.shape)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`block` elements along a row share `block_bytes` bytes; `head_bytes` stand in front of a row's blocks.

    `decode_blocks`: uint8 [..., blocks, block_bytes] -> fp32 [..., blocks, block]. A format of codes also has `group`,
    how many elements share a scale (0: a whole row), and `codes`: the same bytes before scale and code are multiplied.
    Rows with a head are not cut: both then take uint8 [..., 1, bytes of a row] and give [..., 1, cols].
    """

    name: str
    block: int
    block_bytes: int
    decode_blocks: Callable[[Bytes], Floats]
    group: int = 0
    codes: Callable[[Bytes], Coded] | None = None
    head_bytes: int = 0

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row; `cols` must be a multiple of `block`."""
        if cols % self.block:
            raise ValueError(f"{self.name}: {cols} columns are not a multiple of {self.block}")
        return self.head_bytes + cols // self.block * self.block_bytes

    def blocks(self, raw: memoryview | Bytes, rows: int, cols: int) -> Bytes:
        """The bytes of `rows` rows as decode_blocks and codes take them, not copied."""
        whole = np.frombuffer(raw, np.uint8)
        if self.head_bytes:
            return whole.reshape(rows, 1, self.row_bytes(cols))
        return whole.reshape(rows, cols // self.block, self.block_bytes)

    def decode(self, raw: memoryview | Bytes, rows: int, cols: int) -> Floats:
        """fp32 [rows, cols] from the storage's bytes."""
        return self.decode_blocks(self.blocks(raw, rows, cols)).reshape(rows, cols)


def _as_f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float32)


def _as_f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _as_bf16(blocks: Bytes) -> Floats:
    values: Floats = np.ascontiguousarray(blocks).view(ml_dtypes.bfloat16).astype(np.float32)
    return values


def _half(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)


def _planes(codes: Bytes, bits: int, line: int = 32) -> Bytes:
    """The lowest `bits` bits of each of `line` bytes, then the next ones of the same bytes, and so line by line."""
    lines = codes.reshape(*codes.shape[:-1], -1, 1, line)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (lines >> shifts & np.uint8((1 << bits) - 1)).reshape(*codes.shape[:-1], -1)


def _nibbles(codes: Bytes) -> Bytes:
    """Sixteen bytes hold 32 codes: low nibbles are the first 16 elements, high ones the rest."""
    return _planes(codes, 4, line=16)


def _joined(low: Bytes, high: Bytes, at: int) -> Bytes:
    """Further bits of each code, from bit `at` on."""
    joined: Bytes = low | high << np.uint8(at)
    return joined


def _numbers(codes: Bytes, less: int = 0) -> Floats:
    return codes.astype(np.float32) - np.float32(less)


def _signed(codes: Bytes) -> Floats:
    return np.ascontiguousarray(codes).view(np.int8).astype(np.float32)


# Blocks of 32 with one scale (and one minimum).


def _q4_0(blocks: Bytes) -> Coded:
    return Coded(_numbers(_nibbles(blocks[..., 2:]), 8), _half(blocks, 0))


def _q4_1(blocks: Bytes) -> Coded:
    return Coded(_numbers(_nibbles(blocks[..., 4:])), _half(blocks, 0), _half(blocks, 2))


def _fives(high: Bytes, low: Bytes) -> Bytes:
    """32 codes of 5 bits: the fifth bits stand in four bytes, the lowest first."""
    return _joined(_nibbles(low), np.unpackbits(np.ascontiguousarray(high), axis=-1, bitorder="little"), 4)


def _q5_0(blocks: Bytes) -> Coded:
    return Coded(_numbers(_fives(blocks[..., 2:6], blocks[..., 6:]), 16), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Coded:
    return Coded(_numbers(_fives(blocks[..., 4:8], blocks[..., 8:])), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Coded:
    return Coded(_signed(blocks[..., 2:]), _half(blocks, 0))


def _iq4_nl(blocks: Bytes) -> Coded:
    return Coded(IQ4_LEVELS[_nibbles(blocks[..., 2:])], _half(blocks, 0))


# Blocks of 256: scales (and minima) of 16 or 32 elements are integers of a few bits times a half-precision number.


def _q2_k(blocks: Bytes) -> Coded:
    factors = _numbers(_planes(blocks[..., :16], 4, line=16))
    scale, minimum = _half(blocks, 80) * factors[..., :16], _half(blocks, 82) * factors[..., 16:]
    return Coded(_numbers(_planes(blocks[..., 16:80], 2)), scale, -minimum)


def _q3_k(blocks: Bytes) -> Coded:
    codes = _joined(_planes(blocks[..., 32:96], 2), _planes(blocks[..., :32], 1), 2)
    factors = _joined(_planes(blocks[..., 96:104], 4, line=8), _planes(blocks[..., 104:108], 2, line=4), 4)
    return Coded(_numbers(codes, 4), _half(blocks, 108) * _numbers(factors, 32))


def _sixes(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of eight groups, six bits each in twelve bytes behind two half-precision numbers."""
    low, last = _planes(blocks[..., 4:12], 6, line=8), _planes(blocks[..., 12:16], 4, line=4)
    sixes, tops = low[..., :8], low[..., 8:]
    scale = np.concatenate([sixes[..., :4], _joined(last[..., :4], tops[..., :4], 4)], axis=-1)
    minimum = np.concatenate([sixes[..., 4:], _joined(last[..., 4:], tops[..., 4:], 4)], axis=-1)
    return _half(blocks, 0) * _numbers(scale), -(_half(blocks, 2) * _numbers(minimum))


def _q4_k(blocks: Bytes) -> Coded:
    return Coded(_numbers(_planes(blocks[..., 16:], 4)), *_sixes(blocks))


def _q5_k(blocks: Bytes) -> Coded:
    codes = _joined(_planes(blocks[..., 48:], 4), _planes(blocks[..., 16:48], 1), 4)
    return Coded(_numbers(codes), *_sixes(blocks))


def _q6_k(blocks: Bytes) -> Coded:
    codes = _joined(_planes(blocks[..., :128], 4, line=64), _planes(blocks[..., 128:192], 2), 4)
    return Coded(_numbers(codes, 32), _half(blocks, 208) * _signed(blocks[..., 192:208]))


def _iq4_xs(blocks: Bytes) -> Coded:
    factors = _joined(_planes(blocks[..., 4:8], 4, line=1), _planes(blocks[..., 2:4], 2, line=1), 4)
    codes = IQ4_LEVELS[_planes(blocks[..., 8:], 4, line=16)]
    return Coded(codes, _half(blocks, 0) * _numbers(factors, 32))


# Our own: what is quantised here, and what compressed-tensors have in groups that GGUF has not.


def _pairs(codes: Bytes) -> Bytes:
    """Two codes a byte, the low nibble first."""
    return np.stack((codes & np.uint8(15), codes >> np.uint8(4)), axis=-1).reshape(*codes.shape[:-1], -1)


def _row_int8(row: Bytes) -> Coded:
    return Coded(_signed(row[..., 4:]), _as_f32(row[..., :4]))


def _int4(blocks: Bytes) -> Coded:
    return Coded(_numbers(_pairs(blocks[..., 2:]), 8), _half(blocks, 0))


def _int4m(blocks: Bytes) -> Coded:
    return Coded(_numbers(_pairs(blocks[..., 4:])), _half(blocks, 0), _half(blocks, 2))


def _coded(
    name: str, sizes: tuple[int, int, int], codes: Callable[[Bytes], Coded], head_bytes: int = 0
) -> WeightFormat:
    """Sizes: elements of a block, its bytes, elements of a group."""
    block, block_bytes, group = sizes
    return WeightFormat(name, block, block_bytes, lambda blocks: codes(blocks).values(), group, codes, head_bytes)


FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat("F32", 1, 4, _as_f32),
        WeightFormat("F16", 1, 2, _as_f16),
        WeightFormat("BF16", 1, 2, _as_bf16),
        _coded("Q4_0", (32, 18, 32), _q4_0),
        _coded("Q4_1", (32, 20, 32), _q4_1),
        _coded("Q5_0", (32, 22, 32), _q5_0),
        _coded("Q5_1", (32, 24, 32), _q5_1),
        _coded("Q8_0", (32, 34, 32), _q8_0),
        _coded("IQ4_NL", (32, 18, 32), _iq4_nl),
        _coded("Q2_K", (256, 84, 16), _q2_k),
        _coded("Q3_K", (256, 110, 16), _q3_k),
        _coded("Q4_K", (256, 144, 32), _q4_k),
        _coded("Q5_K", (256, 176, 32), _q5_k),
        _coded("Q6_K", (256, 210, 16), _q6_k),
        _coded("IQ4_XS", (256, 136, 32), _iq4_xs),
        _coded("INT8", (1, 1, 0), _row_int8, head_bytes=4),
        _coded("INT8_64", (64, 66, 64), _q8_0),
        _coded("INT8_128", (128, 130, 128), _q8_0),
        _coded("INT4_64", (64, 34, 64), _int4),
        _coded("INT4_128", (128, 66, 128), _int4),
        _coded("INT4M_64", (64, 36, 64), _int4m),
        _coded("INT4M_128", (128, 68, 128), _int4m),
    )
}

# GGUF's number of a type -> its name; what is not in FORMATS is known by name only.
GGUF_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
OF_GGUF = tuple(name for name in GGUF_TYPES.values() if name in FORMATS)
