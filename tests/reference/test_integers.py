"""The reference's products of integers against the same written out in numpy: equal bits, in every format of codes."""

import numpy as np
import pytest
import torch
from tests.native.int8_case import fma, product, rounded
from tests.native.probe import Weights, same_bits
from tests.numerics import order1
from tests.program.sources import drawn

from pelton.backends.reference import integers
from pelton.program.formats import FORMATS
from pelton.program.weights import Storage

CODED = [name for name, form in FORMATS.items() if form.codes]


def coded_matrix(name: str) -> tuple[Weights, Storage]:
    form, rows = FORMATS[name], 20
    cols = 3 * max(form.block, 32)
    source = drawn(name, (rows, cols), name, seed=1)
    raw = np.frombuffer(source.data, np.uint8)
    assert form.codes is not None
    coded = form.codes(form.blocks(raw, rows, cols))
    scale = coded.scale.reshape(rows, -1)
    minimum = None if coded.minimum is None else coded.minimum.reshape(rows, -1)
    codes = coded.codes.reshape(rows, cols)
    weights = Weights("", name, rows, cols, raw, raw, codes, scale, minimum, cols // scale.shape[1])
    return weights, Storage(name, rows, cols, source)


@pytest.mark.parametrize("name", CODED)
def test_products_are_those_of_the_page(name: str) -> None:
    rng = np.random.default_rng(1)
    weights, storage = coded_matrix(name)
    x = rng.standard_normal((9, weights.cols)).astype(np.float32)
    x[3, 5], x[4], x[5] = np.inf, 0, x[5] * np.float32(1e-38)
    got = integers.product(torch.from_numpy(x), integers.Codes.of(storage)).numpy()
    assert same_bits(got, product(weights, rounded(x)))
    assert np.isnan(got[3]).all()
    assert not got[4].any()


def test_rows_in_another_order() -> None:
    rng = np.random.default_rng(2)
    _, storage = coded_matrix("Q4_K")
    order = tuple(int(i) for i in rng.permutation(storage.rows))
    x = torch.from_numpy(rng.standard_normal((3, storage.cols)).astype(np.float32))
    plain = integers.product(x, integers.Codes.of(storage))
    moved = Storage(storage.name, storage.rows, storage.cols, storage.source, order)
    assert torch.equal(integers.product(x, integers.Codes.of(moved)), plain[:, list(order)])


def test_an_fma_is_rounded_once() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(20_000) * 2.0 ** rng.integers(-12, 13, 20_000) for _ in range(3))
    near = -(a * b) * (1 + rng.choice([0, 2.0**-24, -(2.0**-30)], 20_000))  # what is left of a cancelled sum
    for addend in (c, near):
        parts = [part.astype(np.float32) for part in (a, b, addend)]
        expected = np.array([order1.fma(*map(float, row)) for row in zip(*parts, strict=True)], np.float32)
        assert same_bits(fma(*parts), expected)
        assert same_bits(integers.fma(*map(torch.from_numpy, parts)).numpy(), expected)
