"""Encoding of codes, scales and minima: the opposite of decoding, for every format that is written here."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.probe import same_bits
from tests.program.sources import drawn

from pelton.program.encode import LAYOUTS, encode
from pelton.program.formats import FORMATS, OF_GGUF

ROWS, COLS = 3, 384


@pytest.mark.parametrize("name", LAYOUTS)
@given(st.integers(0, 1000))
def test_bytes_come_back(name: str, seed: int) -> None:
    """Any bytes of the format, decoded to codes and encoded again."""
    form, source = FORMATS[name], drawn("w", (ROWS, COLS), name, seed)
    assert form.codes is not None
    coded = form.codes(form.blocks(source.read(), ROWS, COLS))
    scale = coded.scale.reshape(ROWS, -1)
    minimum = None if coded.minimum is None else coded.minimum.reshape(ROWS, -1)
    raw = encode(name, coded.codes.reshape(ROWS, COLS).astype(np.int16), scale, minimum)
    assert raw.shape == (ROWS, form.row_bytes(COLS))
    assert raw.tobytes() == source.data


@pytest.mark.parametrize("name", LAYOUTS)
def test_codes_come_back(name: str) -> None:
    """Every code of the range, with scales of both signs."""
    form, layout = FORMATS[name], LAYOUTS[name]
    codes = np.resize(np.arange(layout.least, layout.most + 1), (ROWS, COLS)).astype(np.int16)
    groups = COLS // (form.group or COLS)
    scale = np.resize(np.array([0.5, -0.25, 2**-20], np.float32), (ROWS, groups))
    minimum = np.full((ROWS, groups), -1.5, np.float32) if layout.minimum else None
    assert form.codes is not None
    coded = form.codes(form.blocks(encode(name, codes, scale, minimum).reshape(-1), ROWS, COLS))
    assert np.array_equal(coded.codes.reshape(ROWS, COLS), codes)
    assert same_bits(coded.scale.reshape(scale.shape), scale)
    assert (coded.minimum is None) == (minimum is None)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    form, layout = FORMATS[name], LAYOUTS[name]
    codes = np.full((ROWS, COLS), layout.most, np.int16)
    scale = np.ones((ROWS, COLS // (form.group or COLS)), np.float32)
    minimum = scale if layout.minimum else None
    for wrong in (layout.most + 1, layout.least - 1):
        with pytest.raises(ValueError, match=f"{name}: codes from"):
            encode(name, np.where(codes > 0, codes, 0) * 0 + np.int16(wrong), scale, minimum)
    with pytest.raises(ValueError, match="minima"):
        encode(name, codes, scale, None if layout.minimum else scale)
    if form.head_bytes:
        return
    for number in (np.float32(1 / 3), np.float32(1e6), np.float32("nan")):
        odd = scale.copy()
        odd[1, 0] = number
        with pytest.raises(ValueError, match=f"{name}: .* is no half-precision number"):
            encode(name, codes, odd, minimum)


def test_own_formats_are_written() -> None:
    assert {name for name in FORMATS if name not in OF_GGUF} < set(LAYOUTS)
