"""Packing: every element of a file lands where kernels.h says, rounded as it says, in whatever ranges of panels."""

import ml_dtypes
import numpy as np
import pytest
from tests.native.probe import CONVERSIONS, PANEL, Bytes, Floats, Probe, padded, random_file, same_bits

PAIRS = [(to, from_format) for to, sources in CONVERSIONS.items() for from_format in sources]
BLOCK_BYTES = {"f32": 2048, "bf16": 1024, "f16": 1024, "q8": 544, "q4": 288, "q4m": 320}


def unpacked(packed: Bytes, to: str, rows: int, cols: int) -> Floats:
    """fp32 [panels * 16, padded(cols)], read by the words of kernels.h alone."""
    blocks = packed.reshape(-(-rows // PANEL), padded(cols) // 32, BLOCK_BYTES[to])
    halves = np.ascontiguousarray(blocks[..., :64]).view(np.float16).astype(np.float32)
    scale, minimum = halves[..., None, :16], halves[..., None, 16:]
    if to == "f32":
        values = blocks.view(np.float32).reshape(*blocks.shape[:2], 32, 16)
    elif to == "f16":
        values = blocks.view(np.float16).astype(np.float32).reshape(*blocks.shape[:2], 32, 16)
    elif to == "bf16":
        pairs = blocks.view(ml_dtypes.bfloat16).astype(np.float32).reshape(*blocks.shape[:2], 16, 16, 2)
        values = pairs.swapaxes(3, 4).reshape(*blocks.shape[:2], 32, 16)
    elif to == "q8":
        values = scale * blocks[..., 32:].view(np.int8).astype(np.float32).reshape(*blocks.shape[:2], 32, 16)
    else:
        words = (
            np.ascontiguousarray(blocks[..., 32 if to == "q4" else 64 :])
            .view(np.uint32)
            .reshape(*blocks.shape[:2], 4, 1, 16)
        )
        codes = (
            (words >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15)
            .astype(np.float32)
            .reshape(*blocks.shape[:2], 32, 16)
        )
        values = scale * (codes - 8) if to == "q4" else scale * codes + minimum
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)).reshape(len(blocks) * PANEL, padded(cols))


@pytest.mark.parametrize(("to", "from_format"), PAIRS)
def test_layout(probes: list[Probe], to: str, from_format: str) -> None:
    rng = np.random.default_rng(1)
    shapes = [(16, 32), (1, 64), (33, 96), (48, 256)] + ([] if to.startswith("q") else [(17, 33), (5, 1), (16, 95)])
    for rows, cols in shapes:
        w = probes[0].weights(to, from_format, (rows, cols), rng)
        out = unpacked(w.packed, to, rows, cols)
        assert same_bits(np.ascontiguousarray(out[:rows, :cols]), w.values())
        out[:rows, :cols] = 0
        assert not out.any()


@pytest.mark.parametrize(("to", "from_format"), PAIRS)
def test_ranges_of_panels_and_the_order_of_rows(probes: list[Probe], to: str, from_format: str) -> None:
    rng = np.random.default_rng(2)
    shape = rows, cols = 75, 128
    raw = random_file(from_format, rows, cols, rng)
    whole = probes[0].pack(to, from_format, raw, shape)
    parts = probes[0].pack(to, from_format, raw, shape, panels=[(3, 5), (0, 1), (1, 3), (2, 2)])
    assert np.array_equal(whole, parts)
    order = rng.permutation(rows).astype(np.int32)
    moved = unpacked(probes[0].pack(to, from_format, raw, shape, order=order), to, rows, cols)
    assert same_bits(np.ascontiguousarray(moved[:rows]), np.ascontiguousarray(unpacked(whole, to, rows, cols)[order]))


def test_rounding_of_every_half_to_bf16(probes: list[Probe]) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(1024, 64)
    packed = probes[0].pack("bf16", "F16", np.frombuffer(halves.tobytes(), np.uint8), (1024, 64))
    with np.errstate(invalid="ignore"):
        expected = halves.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert same_bits(unpacked(packed, "bf16", 1024, 64), expected)


def test_rounding_of_fp32_to_bf16(probes: list[Probe]) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**32, (64, 64), np.uint32)
    words[0] = 0x3F808000 + np.arange(64, dtype=np.uint32) * 0x8000  # halfway between neighbours: ties go to even
    words[1, :4] = 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFFFFFFFF  # overflow to infinity, infinity, two NaNs
    values = words.view(np.float32)
    packed = probes[0].pack("bf16", "F32", np.frombuffer(values.tobytes(), np.uint8), (64, 64))
    with np.errstate(invalid="ignore", over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert same_bits(unpacked(packed, "bf16", 64, 64), expected)


def test_refusals_name_the_conversion(probes: list[Probe]) -> None:
    raw = np.zeros(1 << 14, np.uint8)
    for to, from_format in (("q4", "Q4_1"), ("bf16", "Q8_0"), ("f32", "F16"), ("q8", "Q9_9")):
        with pytest.raises(ValueError, match=f"{from_format} as {to}"):
            probes[0].pack(to, from_format, raw, (16, 32), panels=[(0, 0)])
    with pytest.raises(ValueError, match="33 columns are not whole blocks"):
        probes[0].pack("q8", "Q8_0", raw, (16, 33))
