"""Integer products: pinned to the bit on every instruction set, for every format and every grouping of rows."""

import ctypes
import itertools

import numpy as np
import pytest
from tests.native.int8_case import IntProbe, IntRows, product, rounded
from tests.native.library import every_probe
from tests.native.probe import CONVERSIONS, Bytes, Floats, Probe, fitting, same_bits
from tests.native.test_matmul import random_rows
from tests.program.sources import HALVES

from pelton.program.formats import FORMATS as FILE_FORMATS

FORMATS = sorted(name for name in CONVERSIONS if name[0] not in "bf")
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 13, 15, 16, 17, 31, 33)
SHAPES = ((16, 32), (1, 64), (17, 96), (47, 288), (32, 576), (33, 1280))


@pytest.fixture(scope="module")
def ints(native_library: ctypes.CDLL) -> list[IntProbe]:
    return [IntProbe(probe) for probe in every_probe(native_library)]


def same_rows(a: IntRows, b: IntRows) -> bool:
    return (
        np.array_equal(a.fours, b.fours)
        and np.array_equal(a.eights, b.eights)
        and same_bits(a.scales, b.scales)
        and np.array_equal(a.sums, b.sums)
    )


@pytest.mark.parametrize("packed", FORMATS)
def test_the_page_to_the_bit_on_every_isa(probes: list[Probe], ints: list[IntProbe], packed: str) -> None:
    rng = np.random.default_rng(1)
    for form in CONVERSIONS[packed]:
        for rows, cols in SHAPES:
            w = probes[0].weights(packed, form, (rows, fitting(packed, cols)), rng)
            x = rounded(random_rows(max(ROW_COUNTS), w.cols, rng))
            expected = product(w, x)
            for count, probe in itertools.product(ROW_COUNTS, ints):
                out = probe.matmul(w, x.part(slice(0, count)))
                assert same_bits(np.ascontiguousarray(out[:, : w.rows]), expected[:count]), (probe, form, cols, count)
                assert not out[:, w.rows :].any()


@pytest.mark.parametrize("packed", FORMATS)
def test_extremes_do_not_saturate(probes: list[Probe], ints: list[IntProbe], packed: str) -> None:
    rng = np.random.default_rng(2)
    cols = fitting(packed, 320)
    for byte in (0x00, 0x7F, 0x80, 0x88, 0xFF):
        for form in CONVERSIONS[packed]:
            w = probes[0].weights(packed, form, (16, cols), rng)
            raw = np.where(rng.random(len(w.raw)) < 0.9, np.uint8(byte), w.raw)
            w = probes[0].packed(packed, form, (16, cols), with_codes(form, cols, w.raw, raw))
            own = np.where(w.codes[0] < 0, -1, 1)
            for sign in (np.ones(cols), -np.ones(cols), np.resize([1, -1], cols), own):
                x = rounded(np.resize(sign, (7, cols)).astype(np.float32))
                expected = product(w, x)
                for probe in ints:
                    for count in (1, 7):
                        out = np.ascontiguousarray(probe.matmul(w, x.part(slice(0, count))))
                        assert same_bits(out, expected[:count]), (probe, form, byte)


def with_codes(form: str, cols: int, scales: Bytes, codes: Bytes) -> Bytes:
    """File bytes with the scales and minima of one matrix and all other bytes of another."""
    file = FILE_FORMATS[form]
    places = [(0, file.head_bytes)] if file.head_bytes else [(at, at + 2) for at in HALVES[form]]
    blocks = codes.reshape(-1, file.row_bytes(cols) if file.head_bytes else file.block_bytes).copy()
    for first, last in places:
        blocks[:, first:last] = scales.reshape(blocks.shape)[:, first:last]
    return blocks.reshape(-1)


@pytest.mark.parametrize("packed", FORMATS)
def test_a_row_alone_is_the_row_among_others(probes: list[Probe], ints: list[IntProbe], packed: str) -> None:
    rng, cols = np.random.default_rng(3), fitting(packed, 1568)
    w = probes[0].weights(packed, CONVERSIONS[packed][-1], (80, cols), rng)
    for probe in ints:
        x = probe.prepare(random_rows(70, cols, rng))
        together = probe.matmul(w, x)
        for panels in (1, 2, 3):
            assert same_bits(probe.matmul(w, x, panels=panels), together)
        for first, last in ((0, 1), (5, 6), (69, 70), (3, 5), (10, 13), (20, 29), (30, 63)):
            assert same_bits(probe.matmul(w, x.part(slice(first, last))), together[first:last]), (probe, first, last)


@pytest.mark.parametrize("packed", FORMATS)
def test_what_is_not_finite_stays_in_its_row(probes: list[Probe], ints: list[IntProbe], packed: str) -> None:
    rng, cols = np.random.default_rng(4), fitting(packed, 128)
    w = probes[0].weights(packed, CONVERSIONS[packed][0], (48, cols), rng)
    clean = random_rows(19, cols, rng)
    spoilt = clean.copy()
    spoilt[7, 40], spoilt[12, 3], spoilt[15, 127] = np.nan, np.inf, -np.inf
    for probe in ints:
        expected, out = (probe.matmul(w, probe.prepare(x)) for x in (clean, spoilt))
        assert np.isnan(out[[7, 12, 15]]).all()
        others = [t for t in range(19) if t not in (7, 12, 15)]
        assert same_bits(np.ascontiguousarray(out[others]), np.ascontiguousarray(expected[others]))


def rows_at_the_edges(cols: int, rng: np.random.Generator) -> Floats:
    x = random_rows(14, cols, rng)
    x[1] = 0
    x[2] *= np.float32(1e-40)
    x[3] *= np.float32(3e-38)
    x[4] *= np.float32(1e-36)
    x[5] *= np.float32(1e37)
    x[6, cols // 2] = np.nan
    x[7, 0] = np.inf
    x[8, -1] = -np.inf
    x[9] = np.resize(np.arange(-127, 128) * 0.5, cols)  # halves: ties to even
    x[9, 0] = 127
    x[10] = 1
    x[11] = -1
    x[12] *= 0
    x[12, -1] = -5
    return x


@pytest.mark.parametrize("cols", [1, 15, 16, 17, 31, 32, 33, 96, 259, 576, 1570])
def test_rows_are_rounded_to_8_bits(ints: list[IntProbe], cols: int) -> None:
    x = rows_at_the_edges(cols, np.random.default_rng(5))
    expected = rounded(x)
    assert np.abs(expected.fours[:, :cols].astype(int)).max() == 127
    for probe in ints:
        got = probe.prepare(x)
        assert same_rows(got, expected), probe


@pytest.mark.parametrize("cols", [32, 100, 576])
def test_the_norm_is_that_of_prepare(probes: list[Probe], ints: list[IntProbe], cols: int) -> None:
    rng = np.random.default_rng(6)
    x, gain = random_rows(5, cols, rng) * 3, random_rows(1, cols, rng)[0]
    for own in ints:
        normed, _ = probes[0].prepare(x, gain=gain, rounded=False)
        assert same_rows(own.prepare(x, gain), rounded(np.ascontiguousarray(normed[:, :cols])))
