"""matmul: order 1 to the bit, on every instruction set, for every format and every grouping of rows."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.native.probe import CODED, CONVERSIONS, WHOLE_ROWS, Floats, Probe, Weights, fitting, same_bits
from tests.numerics import order1

FORMATS = sorted(CONVERSIONS)
ROW_COUNTS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33)
# Outputs and columns: whole panels and blocks, tails of both, more blocks than are expanded at a time.
SHAPES = ((16, 32), (1, 64), (17, 96), (47, 288), (32, 576), (49, 1280))
TAILED = ((16, 1), (5, 31), (33, 33), (16, 65), (20, 259))


def shapes(packed: str) -> list[tuple[int, int]]:
    given = SHAPES + TAILED if fitting(packed, 1) == 1 else SHAPES
    return [(rows, fitting(packed, cols)) for rows, cols in given]


def random_rows(count: int, cols: int, rng: np.random.Generator) -> Floats:
    return rng.standard_normal((count, cols)).astype(np.float32)


@pytest.mark.parametrize("packed", FORMATS)
@pytest.mark.parametrize("rounded", [True, False])
def test_order_1_to_the_bit_on_every_isa(probes: list[Probe], packed: str, rounded: bool) -> None:
    rng = np.random.default_rng(1)
    for shape in shapes(packed):
        w = probes[0].weights(packed, CONVERSIONS[packed][0], shape, rng)
        for count in ROW_COUNTS:
            x, sums = probes[0].prepare(random_rows(count, shape[1], rng), rounded=rounded)
            expected = probes[0].order1(w, x, sums)
            for probe in probes:
                for together in (1, 3):
                    out = probe.matmul(w, x, sums, together=together)
                    assert same_bits(out[:, : w.rows], expected), (probe, shape, count, together)
                    assert not out[:, w.rows :].any()


@pytest.mark.parametrize("packed", CODED)
@pytest.mark.parametrize("form", ["values", "exact"])
def test_the_values_form_to_the_bit_on_every_isa(probes: list[Probe], packed: str, form: str) -> None:
    rng = np.random.default_rng(8)
    for shape in ((1, fitting(packed, 64)), (33, fitting(packed, 544))):
        w = probes[0].weights(packed, CONVERSIONS[packed][0], shape, rng)
        for count in (1, 2, 7, 16, 33):
            x, sums = probes[0].prepare(random_rows(count, shape[1], rng), rounded=form == "values")
            expected = probes[0].order1(w, x, sums, form=form)
            for probe in probes:
                out = probe.matmul(w, x, sums, together=3, form=form)
                assert same_bits(out[:, : w.rows], expected), (probe, shape, count)
                assert not out[:, w.rows :].any()


def test_many_rows_are_the_same_in_parts(probes: list[Probe]) -> None:
    """More rows than stay in the L2 cache at a time, in calls with several panels and with one."""
    rng = np.random.default_rng(9)
    w = probes[0].weights("q4m", "Q4_1", (80, 1536), rng)
    x, sums = probes[0].prepare(random_rows(101, 1536, rng))
    expected = probes[0].order1(w, x, sums)
    for probe in probes[1:]:
        for together in (1, 5):
            assert same_bits(probe.matmul(w, x, sums, together=together), expected), (probe, together)


@pytest.mark.parametrize(("packed", "from_format"), [(to, form) for to, forms in CONVERSIONS.items() for form in forms])
def test_the_page_in_plain_python(probes: list[Probe], packed: str, from_format: str) -> None:
    rng = np.random.default_rng(6)
    w = probes[0].weights(packed, from_format, (3, fitting(packed, 96)), rng)
    x, sums = probes[0].prepare(random_rows(2, w.cols, rng))
    scale, minimum = (None if part is None else part.tolist() for part in (w.scale, w.minimum))
    unit = 0 if from_format in WHOLE_ROWS else w.unit
    expected = [
        order1.product(row, w.codes[i].tolist(), scale and scale[i], minimum and minimum[i], unit)
        for row in x.tolist()
        for i in range(w.rows)
    ]
    for probe in probes:
        out = probe.matmul(w, x, sums)[:, : w.rows]
        assert same_bits(np.ascontiguousarray(out), np.array(expected, np.float32).reshape(2, w.rows)), probe


@pytest.mark.parametrize("packed", FORMATS)
def test_close_to_float64(probes: list[Probe], packed: str) -> None:
    rng = np.random.default_rng(2)
    for shape in shapes(packed):
        for from_format in CONVERSIONS[packed]:
            w = probes[0].weights(packed, from_format, shape, rng)
            x, sums = probes[0].prepare(random_rows(3, shape[1], rng))
            values = w.values().astype(np.float64)
            exact = x[:, : w.cols] @ values.T
            # Each output is off by at most one rounding per product and sum on its way, of the size of the terms.
            bound = 8 * np.finfo(np.float32).eps * (np.abs(x[:, : w.cols]) @ np.abs(values.T) + np.abs(exact)) + 1e-30
            if w.minimum is not None:
                bound = bound + 8 * np.finfo(np.float32).eps * codes_form_size(w, x)
            for probe in probes:
                assert (np.abs(probe.matmul(w, x, sums)[:, : w.rows] - exact) <= bound).all(), (probe, shape)


def codes_form_size(w: Weights, x: Floats) -> NDArray[np.float64]:
    """Size of the terms of the codes form, where scale * code and the minimum cancel only in the end."""
    assert w.scale is not None and w.minimum is not None
    codes = np.abs(w.codes.reshape(w.rows, -1, w.unit))
    parts = codes * np.abs(w.scale)[..., None] + np.abs(w.minimum)[..., None]
    return np.asarray(np.abs(x[:, : w.cols]) @ parts.reshape(w.rows, w.cols).T, np.float64)


@pytest.mark.parametrize("packed", FORMATS)
def test_a_row_alone_is_the_row_among_others(probes: list[Probe], packed: str) -> None:
    rng, cols = np.random.default_rng(3), fitting(packed, 560)
    w = probes[0].weights(packed, CONVERSIONS[packed][-1], (32, cols), rng)
    x, sums = probes[0].prepare(random_rows(70, cols, rng))
    for probe in probes:
        together = probe.matmul(w, x, sums)
        for first, last in ((0, 1), (5, 6), (69, 70), (3, 5), (10, 13), (20, 29), (30, 63)):
            part = probe.matmul(w, np.ascontiguousarray(x[first:last]), np.ascontiguousarray(sums[first:last]))
            assert same_bits(part, together[first:last]), (probe, first, last)


@pytest.mark.parametrize("packed", FORMATS)
def test_nan_stays_in_its_row(probes: list[Probe], packed: str) -> None:
    rng, cols = np.random.default_rng(4), fitting(packed, 128)
    w = probes[0].weights(packed, CONVERSIONS[packed][0], (48, cols), rng)
    clean = random_rows(19, cols, rng)
    spoilt = clean.copy()
    spoilt[7, 40] = np.nan
    spoilt[12, 3] = np.inf
    for probe in probes:
        expected, out = (probe.matmul(w, *probe.prepare(x)) for x in (clean, spoilt))
        assert np.isnan(out[7]).all()
        assert not np.isfinite(out[12]).any()
        others = [t for t in range(19) if t not in (7, 12)]
        assert same_bits(out[others], expected[others])


def test_denormals_count_as_zero_and_are_flushed(probes: list[Probe]) -> None:
    tiny = np.float32(1e-40)
    normal = np.float32(2e-38)
    values = np.zeros((16, 64), np.float32)
    values[0, 0] = tiny  # a denormal weight: counts as zero even times a large x
    values[1, 1] = 1.0  # times a denormal x
    values[2, 2] = normal  # a product below the smallest normal number
    values[3, 3] = normal  # a normal product
    x = np.ones((9, 64), np.float32)
    x[:, 0] = 1e30
    x[:, 1] = tiny
    x[:, 2] = 0.25
    for probe in probes:
        w = probe.packed("f32", "F32", (16, 64), np.frombuffer(values.tobytes(), np.uint8))
        for count in (1, 9):
            rows = np.ascontiguousarray(x[:count])
            out = probe.matmul(w, rows, np.zeros((count, 6), np.float32))
            assert (out[:, :3] == 0).all(), probe
            assert (out[:, 3] == normal).all()
            assert not out[:, 4:].any()


def test_zero_rows_write_nothing(probes: list[Probe]) -> None:
    rng = np.random.default_rng(5)
    for probe in probes:
        w = probe.weights("bf16", "BF16", (16, 64), rng)
        out = probe.matmul(w, np.zeros((0, 64), np.float32), np.zeros((0, 6), np.float32))
        assert out.shape == (0, 16)
