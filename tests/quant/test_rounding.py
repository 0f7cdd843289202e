"""Rounding to nearest: codes within their range and the bound of their scale, and rows that stand for themselves."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.program.sources import dense

from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS
from pelton.quant import rounding as module
from pelton.quant.rounding import RoundedSource, Rounding, quantise_rows

Floats = NDArray[np.float32]
KINDS = [
    Rounding(bits, group, minimum)
    for bits, group, minimum in (
        (8, 0, False), (8, 32, False), (8, 64, False), (8, 128, False), (4, 32, False), (4, 64, False),
        (4, 128, False), (4, 32, True), (4, 64, True), (4, 128, True),
    )
]  # fmt: skip
ROWS, COLS = 6, 256


def decoded(raw: NDArray[np.uint8], kind: Rounding, cols: int = COLS) -> Floats:
    return FORMATS[kind.format].decode(raw.reshape(-1), len(raw), cols)


def numbers(seed: int, spread: float = 0.1, rows: int = ROWS, cols: int = COLS) -> Floats:
    return (np.random.default_rng(seed).standard_normal((rows, cols)) * spread).astype(np.float32)


def bound(values: Floats, kind: Rounding) -> Floats:
    """Half a step of each number's group, and what rounding the scale and leaving out a code can cost."""
    groups = values.reshape(len(values), -1, kind.group or values.shape[1])
    if kind.minimum:
        step = (np.maximum(groups.max(-1), 0) - np.minimum(groups.min(-1), 0)) / 15
        each = step * 1.1  # the zero point may lie half a step off, and the scale's seven bits add to that
    elif kind.bits == 4:
        each = np.abs(groups).max(-1) / 8 * 1.01  # the code that the side without the extreme has less
    else:
        each = np.abs(groups).max(-1) / 127 * 0.6
    return np.repeat(each, groups.shape[-1], axis=1).reshape(values.shape)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.format)
@given(st.integers(0, 10**6), st.sampled_from([1e-3, 0.05, 1.0, 300.0]))
def test_every_number_is_within_its_bound(kind: Rounding, seed: int, spread: float) -> None:
    values = numbers(seed, spread)
    values[1] = 0
    values[2, ::2] = np.abs(values[2, ::2])
    values[3] = np.abs(values[3]) + np.float32(spread)
    got = decoded(quantise_rows(values, kind), kind)
    assert (np.abs(got - values) <= bound(values, kind) + 1e-7).all()
    assert not got[1].any(), "zeros stay zeros"
    if kind.minimum:
        assert np.array_equal(got == 0, np.abs(got) < 1e-6), "a zero among others is exact"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.format)
def test_codes_are_of_the_range_and_use_it(kind: Rounding) -> None:
    form = FORMATS[kind.format]
    assert form.codes is not None
    codes = form.codes(form.blocks(quantise_rows(numbers(3), kind).reshape(-1), ROWS, COLS)).codes
    least, most = {(8, False): (-127, 127), (4, False): (-8, 7), (4, True): (0, 15)}[kind.bits, kind.minimum]
    assert codes.min() >= least and codes.max() <= most
    if kind.bits == 8:
        assert np.abs(codes).max() == 127
    else:
        assert (codes.min(), codes.max()) == (least, most)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.minimum], ids=lambda kind: kind.format)
def test_what_is_quantised_once_stays(kind: Rounding) -> None:
    """The largest magnitude of a group is one of its codes, so the numbers that codes stand for have the same ones."""
    first = decoded(quantise_rows(numbers(5), kind), kind)
    again = decoded(quantise_rows(first, kind), kind)
    assert np.allclose(again, first, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.format)
def test_rows_do_not_depend_on_each_other(kind: Rounding) -> None:
    values = numbers(7)
    together = quantise_rows(values, kind)
    for row in range(ROWS):
        assert np.array_equal(quantise_rows(values[row : row + 1], kind)[0], together[row])


def test_scales_suit_the_codes() -> None:
    """Codes are computed for the scale that is stored: no stored code is further than half of it from its number."""
    kind = Rounding(8, 32)
    values, form = numbers(11, 1e-4), FORMATS[kind.format]
    assert form.codes is not None
    coded = form.codes(form.blocks(quantise_rows(values, kind).reshape(-1), ROWS, COLS))
    scale = coded.scale.reshape(ROWS, -1, 1)
    away = np.abs(coded.codes.reshape(ROWS, -1, 32) - values.reshape(ROWS, -1, 32) / scale)
    inside = np.abs(coded.codes.reshape(ROWS, -1, 32)) < 127
    assert away[inside].max() <= 0.5 + 1e-4


def test_the_choice_of_scales_is_the_better_one() -> None:
    """What the docstring says of 4 bits: the signed extreme / -8 against the largest magnitude / 7."""
    values, kind = numbers(13, rows=200), Rounding(4, 32)
    ours = np.square(decoded(quantise_rows(values, kind), kind) - values).sum()
    groups = values.reshape(200, -1, 32)
    scale = (np.abs(groups).max(-1, keepdims=True) / 7).astype(np.float16).astype(np.float32)
    theirs = np.square(np.clip(np.rint(groups / scale), -8, 7) * scale - groups).sum()
    assert np.sqrt(ours / theirs) == pytest.approx(0.88, abs=0.02)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.minimum], ids=lambda kind: kind.format)
def test_minima_are_zero_points(kind: Rounding) -> None:
    form = FORMATS[kind.format]
    assert form.codes is not None
    coded = form.codes(form.blocks(quantise_rows(numbers(17), kind).reshape(-1), ROWS, COLS))
    assert coded.minimum is not None
    zeros = -coded.minimum / coded.scale
    assert np.array_equal(zeros, np.rint(zeros)) and zeros.min() >= 0 and zeros.max() <= 15
    assert np.array_equal(zeros * coded.scale, -coded.minimum)


def test_groups_that_do_not_divide_fall_back() -> None:
    asked = Rounding(4, 128)
    assert asked.fitting(1536) == asked
    assert asked.fitting(576) == Rounding(4, 64)
    assert asked.fitting(96) == Rounding(4, 32)
    assert asked.fitting(100) is None
    assert Rounding(4, 64, True).fitting(32) == Rounding(4, 32, True)
    assert Rounding(4, 32).fitting(48) is None
    assert Rounding(8, 0).fitting(7) == Rounding(8, 0)


@pytest.mark.parametrize("form", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("kind", [Rounding(8, 0), Rounding(4, 64), Rounding(4, 32, True)], ids=lambda kind: kind.format)
def test_sources_are_read_in_portions(kind: Rounding, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out does not depend on the portions, and is what the stored numbers give."""
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[form]
    values = numbers(19, rows=11)
    source = RoundedSource(dense("w", values, form), kind)
    whole = bytes(source.read())
    assert whole == quantise_rows(values.astype(dtype).astype(np.float32), kind).tobytes()
    monkeypatch.setattr(module, "PORTION", 3 * COLS)
    assert bytes(source.read()) == whole
    assert (source.name, source.shape, source.format) == ("w", (11, COLS), kind.format)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.format)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused_by_the_tensors_name(kind: Rounding, wrong: float) -> None:
    values = numbers(23)
    values[4, 200] = wrong
    with pytest.raises(CheckpointError, match="Tensor 'layer.7.weight' has weights that are NaN or infinite"):
        RoundedSource(dense("layer.7.weight", values), kind).read()


def test_numbers_beyond_half_precision() -> None:
    values = numbers(29) * np.float32(1e9)
    for kind in KINDS:
        source = RoundedSource(dense("big", values), kind)
        if kind.group:
            with pytest.raises(CheckpointError, match="Tensor 'big': numbers too large"):
                source.read()
        else:
            got = decoded(np.frombuffer(source.read(), np.uint8).reshape(ROWS, -1), kind)
            assert (np.abs(got - values) <= bound(values, kind)).all()


def test_tiny_numbers_are_nothing() -> None:
    """A scale that would be no normal number is 0: the step would flush it anyway."""
    values = np.full((2, 64), 1e-37, np.float32)
    for kind in (Rounding(8, 0), Rounding(4, 32), Rounding(4, 64, True)):
        assert not decoded(quantise_rows(values, kind), kind, 64).any()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.minimum], ids=lambda kind: kind.format)
@pytest.mark.parametrize("values", [np.linspace(1, 2, 256), np.linspace(-2, -1, 256), np.full(256, -21 * 2.0**-24)])
def test_zero_points_fit_four_bits_whatever_the_numbers(kind: Rounding, values: np.ndarray) -> None:
    """All of one sign, and so small that a scale loses its digits."""
    form = FORMATS[kind.format]
    assert form.codes is not None
    coded = form.codes(form.blocks(quantise_rows(values.astype(np.float32)[None], kind).reshape(-1), 1, 256))
    assert coded.minimum is not None
    zeros = np.divide(-coded.minimum, coded.scale, out=np.zeros_like(coded.scale), where=coded.scale != 0)
    assert zeros.min() >= 0 and zeros.max() <= 15 and np.array_equal(zeros, np.rint(zeros))


def test_an_identity_tells_what_it_was_rounded_to() -> None:
    class Known(type(dense("w", numbers(1)))):  # type: ignore[misc]
        def identity(self, *, read: bool, advance: object = None) -> str | None:
            return "one"

    source = dense("w", numbers(1))
    known = Known(source.name, source.shape, source.format, source.data)
    found = [RoundedSource(known, kind).identity(read=True) for kind in KINDS]
    assert len({"one", *found}) == 1 + len(KINDS)
