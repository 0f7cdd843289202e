"""Packing: every element of a file lands where kernels.h says, rounded as it says, in whatever ranges of panels."""

import ml_dtypes
import numpy as np
import pytest
from tests.native.probe import CONVERSIONS, PANEL, Bytes, Floats, Probe, fitting, padded, random_file, same_bits

from pelton.program.formats import IQ4_LEVELS

PAIRS = [(to, from_format) for to, sources in CONVERSIONS.items() for from_format in sources]
DENSE = ("f32", "bf16", "f16")
# Codes, what is subtracted from them, scales of a K-block; minima as many as scales; nested: as int8, halves in front.
LAYOUTS = {
    "q8": ("int8", 0, 1, False, False),
    "q4": ("nibbles", 8, 1, False, False),
    "q4m": ("nibbles", 0, 1, True, False),
    "q5": ("fives", 16, 1, False, False),
    "q5m": ("fives", 0, 1, True, False),
    "q4t": ("levels", 0, 1, False, False),
    "q4km": ("nibbles", 0, 1, True, True),
    "q5km": ("fives", 0, 1, True, True),
    "q4kt": ("levels", 0, 1, False, True),
    "q6kh": ("sixes", 32, 2, False, True),
    "q3kh": ("threes", 4, 2, False, True),
    "q2khm": ("crumbs", 0, 2, True, True),
    "i8c": ("int8", 0, 1, False, False),
    "q8s2": ("int8", 0, 1, False, False),
    "q8s4": ("int8", 0, 1, False, False),
    "q4s2": ("nibbles", 8, 1, False, False),
    "q4s4": ("nibbles", 8, 1, False, False),
    "q4ms2": ("nibbles", 0, 1, True, False),
    "q4ms4": ("nibbles", 0, 1, True, False),
}
SPANS = {"i8c": 0, "q8s2": 2, "q8s4": 4, "q4s2": 2, "q4s4": 4, "q4ms2": 2, "q4ms4": 4}  # K-blocks that share a scale
# Bits of a code that stand together, the lowest first.
PARTS = {"nibbles": (4,), "levels": (4,), "fives": (4, 1), "sixes": (4, 2), "crumbs": (2,), "threes": (2, 1)}
BITS = {
    "f32": 32, "bf16": 16, "f16": 16, "q8": 8.5, "q4": 4.5, "q4m": 5, "q5": 5.5, "q5m": 6, "q4t": 4.5, "q4km": 4.625,
    "q5km": 5.625, "q4kt": 4.3125, "q6kh": 6.5625, "q3kh": 3.5625, "q2khm": 3.125, "i8c": 8.0625, "q8s2": 8.25,
    "q8s4": 8.125, "q4s2": 4.25, "q4s4": 4.125, "q4ms2": 4.5, "q4ms4": 4.25,
}  # fmt: skip


def unpacked(packed: Bytes, to: str, rows: int, cols: int) -> Floats:
    """fp32 [panels * 16, padded(cols)], read by the words of kernels.h alone."""
    panels, blocks = -(-rows // PANEL), padded(cols) // 32
    values = dense(packed.reshape(panels, blocks, -1), to) if to in DENSE else coded(packed, to, panels, blocks)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)).reshape(panels * PANEL, padded(cols))


def dense(blocks: Bytes, to: str) -> Floats:
    """[panels, blocks, 32 k, 16]."""
    shape = (*blocks.shape[:2], 32, 16)
    if to == "f32":
        return blocks.view(np.float32).reshape(shape)
    if to == "f16":
        return blocks.view(np.float16).astype(np.float32).reshape(shape)
    pairs: Floats = blocks.view(ml_dtypes.bfloat16).astype(np.float32).reshape(*blocks.shape[:2], 16, 16, 2)
    return pairs.swapaxes(3, 4).reshape(shape)


def coded(packed: Bytes, to: str, panels: int, blocks: int) -> Floats:
    """[panels, blocks, 32 k, 16]."""
    kind, minus, scales, has_minima, nested = LAYOUTS[to]
    group, kinds, span = 8 if nested else SPANS.get(to, 1) or 1, 1 + has_minima, SPANS.get(to, 1)
    packed = packed.reshape(panels, -1)
    packed, tails = np.split(packed, [packed.shape[1] - (0 if span else 64)], 1)
    lines = packed.reshape(panels, blocks // group, -1)
    heads, lines = np.split(lines, [32 * kinds if group > 1 else 0], -1)
    lines = lines.reshape(panels, blocks, -1)
    numbers, codes = np.split(lines, [scales * kinds * 16 * (1 if nested else 2) if span == 1 else 0], -1)
    if span == 0:
        both = np.repeat(np.ascontiguousarray(tails).view(np.float32).reshape(panels, 1, 1, 1, 16), blocks, 1)
    elif nested:
        halves = np.ascontiguousarray(heads).view(np.float16).astype(np.float32).reshape(panels, -1, 1, kinds, 1, 16)
        factors = np.ascontiguousarray(numbers).view(np.int8).astype(np.float32)
        both = (halves * factors.reshape(panels, -1, 8, kinds, scales, 16)).reshape(panels, blocks, kinds, scales, 16)
    else:
        halves = np.ascontiguousarray(numbers if span == 1 else heads).view(np.float16).astype(np.float32)
        both = np.repeat(halves.reshape(panels, -1, kinds, 1, 16), span, 1)
    spread = np.repeat(both, 32 // scales, 3)
    stored = code_numbers(np.ascontiguousarray(codes), kind) - np.float32(minus)
    return np.asarray(spread[:, :, 0] * stored + spread[:, :, 1] if has_minima else spread[:, :, 0] * stored)


def code_numbers(codes: Bytes, kind: str) -> Floats:
    shape = (*codes.shape[:2], 32, 16)
    if kind == "int8":
        fours = codes.view(np.int8).astype(np.float32).reshape(*codes.shape[:2], 8, 16, 4)
        return np.ascontiguousarray(fours.swapaxes(3, 4)).reshape(shape)
    numbers = np.zeros(shape, np.uint32)
    at = 0
    for bits in PARTS[kind]:
        part = np.ascontiguousarray(codes[..., : 64 * bits])
        words = part.view({1: np.uint32, 2: np.uint16, 4: np.uint32}[bits]).astype(np.uint32)
        places = np.arange(0, 32 if bits == 1 else 8 * bits, bits, dtype=np.uint32)[:, None]
        words = words.reshape(*codes.shape[:2], -1, 1, 16)
        numbers |= (words >> places & np.uint32((1 << bits) - 1)).reshape(shape) << np.uint32(at)
        codes, at = codes[..., 64 * bits :], at + bits
    return np.asarray(IQ4_LEVELS[numbers] if kind == "levels" else numbers, np.float32)


@pytest.mark.parametrize(("to", "from_format"), PAIRS)
def test_layout(probes: list[Probe], to: str, from_format: str) -> None:
    rng = np.random.default_rng(1)
    for rows, given in [(16, 32), (1, 64), (33, 96), (48, 256), (17, 513), (5, 1), (16, 95)]:
        cols = fitting(to, given)
        w = probes[0].weights(to, from_format, (rows, cols), rng)
        out = unpacked(w.packed, to, rows, cols)
        assert same_bits(np.ascontiguousarray(out[:rows, :cols]), w.values())
        out[:rows, :cols] = 0
        assert not out.any()


@pytest.mark.parametrize(("to", "from_format"), PAIRS)
def test_ranges_of_panels_and_the_order_of_rows(probes: list[Probe], to: str, from_format: str) -> None:
    rng = np.random.default_rng(2)
    shape = rows, cols = 75, fitting(to, 400)
    raw = random_file(from_format, rows, cols, rng)
    whole = probes[0].pack(to, from_format, raw, shape)
    parts = probes[0].pack(to, from_format, raw, shape, panels=[(3, 5), (0, 1), (1, 3), (2, 2)])
    assert np.array_equal(whole, parts)
    order = rng.permutation(rows).astype(np.int32)
    moved = unpacked(probes[0].pack(to, from_format, raw, shape, order=order), to, rows, cols)
    assert same_bits(np.ascontiguousarray(moved[:rows]), np.ascontiguousarray(unpacked(whole, to, rows, cols)[order]))


@pytest.mark.parametrize("to", BITS)
def test_bits_of_a_weight(probes: list[Probe], to: str) -> None:
    raw = random_file(CONVERSIONS[to][0], 32, 512, np.random.default_rng(4))
    assert 8 * len(probes[0].pack(to, CONVERSIONS[to][0], raw, (32, 512))) == BITS[to] * 32 * 512


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
    with pytest.raises(ValueError, match="Q4_K: 160 columns are not whole blocks"):
        probes[0].pack("q4km", "Q4_K", raw, (16, 160))
