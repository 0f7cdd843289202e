"""Functions of one row beside the RMS norm: the centred norm, an activation alone, logits scaled and capped.

In the pinned order to the bit, the same on every ISA and in tails, and close to fp64.
"""

from collections.abc import Callable

import numpy as np
import pytest
from tests.native import attend_order, row_functions
from tests.native.attend_order import BLOCK, add, chains, mul
from tests.native.probe import Floats, Probe, padded, same_bits
from tests.program import expected

LENGTHS = (1, 2, 15, 16, 17, 30, 31, 32, 33, 63, 64, 100, 576)
FP32 = np.float32


def total(x: Floats, weights: Floats) -> FP32:
    """Order-1 product of x and weights, both [n]."""
    width, result = padded(len(x)), FP32(0)
    both = [np.concatenate([row, np.zeros(width - len(x), FP32)]) for row in (x, weights)]
    for at in range(0, width, BLOCK):
        result = FP32(add(result, chains(both[0][at : at + BLOCK], both[1][at : at + BLOCK, None])[0]))
    return result


def layer_norm(x: Floats, gain: Floats, bias: Floats | None, eps: float) -> Floats:
    n = FP32(len(x))
    apart = add(x, -(total(x, np.ones_like(x)) / n))
    inverse = FP32(1) / np.sqrt(total(apart, apart) / n + FP32(eps))
    y = mul(mul(apart, inverse), gain)
    return y if bias is None else add(y, bias)


@pytest.mark.parametrize("n", LENGTHS)
def test_layer_norm_follows_the_pinned_order(probes: list[Probe], n: int) -> None:
    rng = np.random.default_rng([1, n])
    for mean, spread in ((0.0, 1.0), (5.0, 0.25), (-300.0, 20.0)):
        x, gain, bias = (rng.normal(m, s, n).astype(FP32) for m, s in ((mean, spread), (1, 0.3), (0, 2)))
        for offset in (bias, None):
            wanted = layer_norm(x, gain, offset, 1e-5)
            given = [row.astype(np.float64) for row in (x, gain, np.zeros_like(x) if offset is None else offset)]
            exact = expected.layer_norm(given[0], given[1], given[2], 1e-5)
            assert np.abs(wanted - exact).max() < 1e-4
            for probe in probes:
                assert same_bits(row_functions.layer_norm(probe, x, gain, offset, 1e-5), wanted), (probe, mean)


def test_layer_norm_of_equal_numbers(probes: list[Probe]) -> None:
    """Nothing is left of them but the bias; a NaN or infinity reaches every number."""
    gain, bias = np.full(40, 3, FP32), np.arange(40, dtype=FP32)
    for probe in probes:
        assert same_bits(row_functions.layer_norm(probe, np.full(40, 2.5, FP32), gain, bias, 1e-5), bias)
        for wrong in (np.nan, np.inf):
            x = np.full(40, 2.5, FP32)
            x[17] = wrong
            assert np.isnan(row_functions.layer_norm(probe, x, gain, bias, 1e-5)).all()


@pytest.mark.parametrize(("activation", "function"), [(0, expected.silu), (1, expected.gelu_tanh)])
def test_an_activation_alone_is_one_gated_by_ones(
    probes: list[Probe], activation: int, function: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = np.concatenate([np.linspace(-20, 20, 1001), [-0.0, 0.0, 200, -200, np.inf]]).astype(FP32)
    assert np.allclose(
        row_functions.activate(probes[0], x[:1001], activation), function(x[:1001].astype(np.float64)), atol=1e-6
    )
    for probe in probes:
        assert same_bits(row_functions.activate(probe, x, activation), probe.gated(x, np.ones_like(x), activation))
        for n in LENGTHS:
            assert same_bits(
                row_functions.activate(probe, x[-n:].copy(), activation),
                row_functions.activate(probe, x, activation)[-n:],
            )
        assert np.isnan(row_functions.activate(probe, np.array([np.nan], FP32), activation)[0])


@pytest.mark.parametrize(("scale", "softcap"), [(0.25, 0.0), (1.0, 30.0), (0.0625, 1.5)])
def test_capped_logits(probes: list[Probe], scale: float, softcap: float) -> None:
    x = np.concatenate([np.linspace(-60, 60, 999), [-0.0, 0.0, 1e4, -1e4]]).astype(FP32)
    wanted = mul(x, FP32(scale))
    exact = np.float64(x) * scale
    if softcap:
        wanted = mul(FP32(softcap), attend_order.tanh(wanted / FP32(softcap)))
        exact = softcap * np.tanh(exact / softcap)
    assert np.allclose(wanted, exact, rtol=1e-6, atol=1e-6)
    for probe in probes:
        out = row_functions.cap_logits(probe, x, scale, softcap)
        assert same_bits(out, wanted), probe
        for n in LENGTHS:
            assert same_bits(row_functions.cap_logits(probe, x[-n:].copy(), scale, softcap), out[-n:])
        assert np.isnan(row_functions.cap_logits(probe, np.array([np.nan], FP32), scale, softcap)[0])
