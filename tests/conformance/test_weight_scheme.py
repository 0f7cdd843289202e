"""Every weight scheme: each format claimed once, true facts, products as with decoded weights."""

import numpy as np
import pytest
from registry_entries import entries
from tests.program.one_op import Bench, result
from tests.program.sources import ShapeSource

from pelton.core.errors import UnsupportedModelError
from pelton.core.needs import Claim
from pelton.program.formats import FORMATS
from pelton.program.weights import Storage
from pelton.quant import SCHEMES, scheme_name

ROWS, COLS = 24, 256


def storage(form: str, shape: tuple[int, ...] = (ROWS, COLS)) -> Storage:
    rows, cols = shape if len(shape) == 2 else (1, *shape)
    return Storage(form, rows, cols, ShapeSource(form, shape, form))


def own_formats(name: str) -> list[str]:
    """The formats whose matrices make a checkpoint this scheme's."""
    return [form for form in FORMATS if SCHEMES.get(name)().claims(frozenset({form}))]


def test_every_format_is_claimed_once() -> None:
    for form in FORMATS:
        claims = [name for name in entries("weight_scheme") if SCHEMES.get(name)().claims(frozenset({form}))]
        assert len(claims) == 1, (form, claims)


@pytest.mark.parametrize("name", entries("weight_scheme"))
def test_scheme_is_found_and_describes_itself(name: str) -> None:
    forms = own_formats(name)
    assert forms
    for form in forms:
        storages = [storage(form), storage("F32", (COLS,))]
        assert scheme_name(storages) == name
        facts = SCHEMES.get(name)().describe(storages, exact=True)
        total = storages[0].nbytes + 4 * COLS
        assert facts.bits_per_weight == 8 * total / (ROWS * COLS + COLS)
        assert sum(facts.format_bytes.values()) == total
        assert facts.needs.claim is Claim.EXACT
        assert "fp32" in facts.arithmetic


@pytest.mark.parametrize("name", entries("weight_scheme"))
def test_rounding_is_said(name: str) -> None:
    """By default a dense matrix with more than bf16's digits loses some, and the facts say so; vectors lose none."""
    scheme = SCHEMES.get(name)()
    for form in own_formats(name):
        facts = scheme.describe([storage(form), storage("F16"), storage("F32", (COLS,))], exact=False)
        assert "F16" in facts.arithmetic
        assert "rounded to bf16" in facts.arithmetic
        assert facts.needs.claim is Claim.LOSSY
        lossless = scheme.describe([storage("BF16"), storage("F32", (COLS,))], exact=False)
        assert "rounded" not in lossless.arithmetic
        assert lossless.needs.claim is Claim.EXACT


def test_unknown_formats_are_named() -> None:
    class Odd(ShapeSource):
        pass

    odd = Storage("odd", ROWS, COLS, Odd("odd", (ROWS, COLS), "Q9_9"))
    with pytest.raises(UnsupportedModelError, match="Q9_9.*"):
        scheme_name([odd, storage("F32")])


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("name", entries("weight_scheme"))
def test_products_are_those_of_decoded_weights(name: str, backend: str) -> None:
    for form in own_formats(name):
        bench = Bench()
        (x, numbers), (matrix, weights) = bench.rows(COLS), bench.matrix(ROWS, COLS, form)
        bench.builder.op("linear", (x,), ("y",), weights=(matrix,))
        wanted = numbers @ weights.T
        got = result(backend, bench.seen("y", ROWS))
        assert np.abs(got - wanted).max() < 1e-5 * wanted.std(), form
