"""Decoding of weight formats against the gguf package or by their words, and their sizes."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from tests.native.probe import same_bits
from tests.program.sources import DENSE, Bytes, Floats, drawn

from pelton.program.formats import FORMATS, OF_GGUF

ROWS, COLS = 5, 768
QUANTISABLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # by the package
OWN = [name for name in FORMATS if name not in OF_GGUF]
CODED = [name for name, form in FORMATS.items() if form.codes]
BLOCKS_OF_GGUF = [name for name in CODED if name not in OWN]


def theirs(name: str, raw: Bytes) -> Floats:
    """What the gguf package makes of rows of bytes."""
    if name == "BF16":
        return np.asarray(raw.view(ml_dtypes.bfloat16), np.float32)
    numbers = gguf.quants.dequantize(raw.view(DENSE.get(name, np.uint8)), gguf.GGMLQuantizationType[name])
    return np.ascontiguousarray(numbers, np.float32)


@pytest.mark.parametrize("name", OF_GGUF)
def test_decode_is_what_gguf_says(name: str) -> None:
    source = drawn("w", (ROWS, COLS), name)
    assert same_bits(source.numbers, theirs(name, np.frombuffer(source.data, np.uint8).reshape(ROWS, -1)))
    assert source.numbers.std() > 0.02


@pytest.mark.parametrize("name", BLOCKS_OF_GGUF)
def test_decode_of_any_bytes(name: str) -> None:
    """Random bytes, scales among them: every code, tiny and huge halves of both signs, zeros; infinities, NaNs."""
    form = FORMATS[name]
    raw = np.random.default_rng(8).integers(0, 256, (64, 16 * form.block_bytes), np.uint8)
    raw[0] = 0
    raw[1] = 255
    with np.errstate(invalid="ignore", over="ignore"):
        ours, expected = form.decode(raw.data, 64, 16 * form.block), theirs(name, raw)
    assert same_bits(ours, expected)
    assert np.isfinite(ours).mean() > 0.9


@pytest.mark.parametrize("name", QUANTISABLE)
def test_decode_of_quantised_numbers(name: str) -> None:
    values = np.random.default_rng(9).standard_normal((7, COLS)).astype(np.float32)
    values[0, :256] = 0
    values[1, 5] = -300
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    ours = FORMATS[name].decode(raw.data, 7, COLS)
    assert same_bits(ours, theirs(name, raw))
    assert np.abs(ours - values)[2:].max() < 0.3


@pytest.mark.parametrize("name", CODED)
def test_codes_and_scales_are_exact(name: str) -> None:
    """What the codes form rests on: codes exact in bf16, scales and minima numbers of few bits, groups as said."""
    form = FORMATS[name]
    source = drawn("w", (ROWS, COLS), name)
    assert form.codes is not None
    coded = form.codes(form.blocks(source.read(), ROWS, COLS))
    assert np.array_equal(coded.codes, np.rint(coded.codes))
    assert np.array_equal(coded.codes, coded.codes.astype(ml_dtypes.bfloat16).astype(np.float32))
    block = COLS if form.head_bytes else form.block
    assert coded.codes.shape[-1] == block == (form.group or COLS) * coded.scale.shape[-1]
    for part in (coded.scale, coded.minimum):
        assert part is None or form.head_bytes or not (part.view(np.uint32) & 31).any()
    assert same_bits(coded.values().reshape(ROWS, COLS), source.numbers)


@pytest.mark.parametrize("name", OF_GGUF)
def test_sizes_are_those_of_gguf(name: str) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (FORMATS[name].block, FORMATS[name].block_bytes) == (block, block_bytes)
    assert FORMATS[name].row_bytes(COLS) == COLS // block * block_bytes


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="100 columns"):
        FORMATS["Q4_0"].row_bytes(100)
    with pytest.raises(ValueError, match="Q4_K: 160 columns are not a multiple of 256"):
        FORMATS["Q4_K"].row_bytes(160)


def test_codes_by_hand() -> None:
    """One block each: scale 2 (minimum 0.5), first byte 0x31 = element 0 is code 1, element 16 is code 3."""
    two, half = np.float16(2).tobytes(), np.float16(0.5).tobytes()
    codes = bytes([0x31] + [0] * 15)
    q4_0 = FORMATS["Q4_0"].decode(memoryview(two + codes), 1, 32)[0]
    q4_1 = FORMATS["Q4_1"].decode(memoryview(two + half + codes), 1, 32)[0]
    assert (q4_0[0], q4_0[16], q4_0[1]) == (2 * (1 - 8), 2 * (3 - 8), 2 * -8)
    assert (q4_1[0], q4_1[16], q4_1[1]) == (2.5, 6.5, 0.5)
    q8_0 = FORMATS["Q8_0"].decode(memoryview(two + bytes([0xFF, 7] + [0] * 30)), 1, 32)[0]
    assert (q8_0[0], q8_0[1], q8_0[2]) == (-2, 14, 0)


def by_words(name: str, raw: Bytes, cols: int) -> Floats:
    """A row of one of our own formats, byte by byte."""
    if name == "INT8":
        scale = np.frombuffer(raw[:4].tobytes(), "<f4")[0]
        return np.array([scale * np.float32(np.int8(code)) for code in raw[4:].view(np.int8)], np.float32)
    kind, _, size = name.partition("_")
    group, values = int(size), []
    at = 0
    while at < len(raw):
        scale = np.float32(np.frombuffer(raw[at : at + 2].tobytes(), "<f2")[0])
        at += 2
        least = np.float32(0)
        if kind == "INT4M":
            least = np.float32(np.frombuffer(raw[at : at + 2].tobytes(), "<f2")[0])
            at += 2
        for place in range(group):
            if kind == "INT8":
                code = int(raw[at + place].view(np.int8))
            else:
                code = int(raw[at + place // 2]) >> 4 * (place % 2) & 15
                code -= 8 if kind == "INT4" else 0
            values.append(scale * np.float32(code) + least if kind == "INT4M" else scale * np.float32(code))
        at += group if kind == "INT8" else group // 2
    assert len(values) == cols
    return np.array(values, np.float32)


@pytest.mark.parametrize("name", OWN)
def test_own_formats_by_their_words(name: str) -> None:
    source = drawn("w", (ROWS, COLS), name)
    rows = np.frombuffer(source.data, np.uint8).reshape(ROWS, FORMATS[name].row_bytes(COLS))
    for row in range(ROWS):
        assert same_bits(source.numbers[row], by_words(name, rows[row], COLS))


def test_sizes_of_own_formats() -> None:
    sizes = {name: FORMATS[name].row_bytes(128) for name in OWN}
    assert sizes == {
        "INT8": 132, "INT8_64": 132, "INT8_128": 130, "INT4_64": 68, "INT4_128": 66, "INT4M_64": 72, "INT4M_128": 68
    }  # fmt: skip
    with pytest.raises(ValueError, match="INT4_128: 192 columns"):
        FORMATS["INT4_128"].row_bytes(192)
    assert FORMATS["INT8"].row_bytes(100) == 104
