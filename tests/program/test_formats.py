"""Decoding of weight formats against the gguf package, and their sizes."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from tests.program.sources import DENSE, drawn

from pelton.program.formats import FORMATS

ROWS, COLS = 5, 96


@pytest.mark.parametrize("name", FORMATS)
def test_decode_is_what_gguf_says(name: str) -> None:
    source = drawn("w", (ROWS, COLS), name)
    raw = np.frombuffer(source.data, np.uint8).reshape(ROWS, -1)
    kind = gguf.GGMLQuantizationType[name]
    if name == "BF16":
        theirs = raw.view(ml_dtypes.bfloat16).astype(np.float32)
    else:
        theirs = gguf.quants.dequantize(raw if name not in DENSE else raw.view(DENSE[name]), kind)
    np.testing.assert_array_equal(source.numbers, theirs)
    assert source.numbers.std() > 0.02


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_are_those_of_gguf(name: str) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (FORMATS[name].block, FORMATS[name].block_bytes) == (block, block_bytes)
    assert FORMATS[name].row_bytes(COLS) == COLS // block * block_bytes


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="100 columns"):
        FORMATS["Q4_0"].row_bytes(100)


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
