"""The attention kernels against plain softmax attention in fp64, and against the pinned order bit for bit."""

import ctypes
import dataclasses

import numpy as np
import pytest
from tests.native import attend_order
from tests.native.attend_case import Kernels, Shape, bf16, kernels, oracle, sequence
from tests.native.isas import WHOLE_SETS
from tests.native.probe import Probe

CONTEXTS = (1, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1500)
LAYERS = {
    "grouped": Shape(),
    "single": Shape(group=1),
    "wide_group": Shape(value_dim=48, group=8),
    "heads": Shape(key_dim=8, value_dim=16, heads=2, group=2),
    "narrow_value": Shape(key_dim=8, value_dim=2),
    "tail": Shape(key_dim=80, value_dim=90),
    "key_above_value": Shape(key_dim=128, value_dim=96, group=2),
    "large": Shape(key_dim=256, value_dim=256, group=4),
    "largest": Shape(key_dim=512, value_dim=512, group=7),
    "softcap": Shape(softcap=2.0),
    "window_1": Shape(window=1),
    "window_in_tile": Shape(window=75),
    "window_tile": Shape(window=64, group=1),
    "window_chunk": Shape(key_dim=96, window=600, softcap=30.0),
    "slopes": Shape(slopes=(0.5, 0.0625, 0.004)),
    "slopes_window": Shape(key_dim=32, heads=2, group=2, window=75, softcap=9.0, slopes=(0.25, -0.1, 0.01, 0.7)),
}


@pytest.fixture(params=WHOLE_SETS)
def attend(request: pytest.FixtureRequest, native_library: ctypes.CDLL, probes: list[Probe]) -> Kernels:
    if request.param not in [probe.name for probe in probes]:
        pytest.skip(f"this CPU has no {request.param}")
    return kernels(native_library, request.param)


@pytest.mark.parametrize("stored", ["bf16", "fp32"])
@pytest.mark.parametrize("layer", LAYERS)
def test_close_to_fp64(attend: Kernels, layer: str, stored: str) -> None:
    shape = dataclasses.replace(LAYERS[layer], bf16=stored == "bf16")
    # Weights p have 8 bits of mantissa in bf16; a mean of values near 1 by such weights errs by some 1e-3.
    tolerance = 6e-3 if shape.bf16 else 5e-6
    for context in CONTEXTS if shape.key_dim <= 64 else (1, 33, 65, 513, 700):
        rows = min(context, 1 if context > 600 else 5)
        seq = sequence(shape, context)
        out = attend.attend(seq, context - rows, rows)
        for row in range(rows):
            np.testing.assert_allclose(out[row], oracle(seq, context - rows + row), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    "other", [{"window": 74}, {"window": 76}, {"softcap": 2.2}, {"key_dim": 60}, {"missing": 1}, {"slope": 0.03}]
)
def test_the_oracle_would_notice(other: dict[str, float]) -> None:
    """One token more or less, another cap or scale moves the oracle far beyond the tolerances of the test above."""
    shape = Shape(window=0 if "missing" in other else 75, softcap=2.0, slopes=(0.02,) * 3)
    seq = sequence(shape, 150)
    truth = oracle(seq, 149)
    if "missing" in other:
        seq.k, seq.v = seq.k[:-1], seq.v[:-1]
    elif "key_dim" in other:
        seq.k, seq.q = seq.k[:, :, :60], seq.q[:, :, :60]
    elif "slope" in other:
        seq.shape = dataclasses.replace(shape, slopes=(0.02, 0.02, other["slope"]))
    else:
        seq.shape = dataclasses.replace(
            shape, window=int(other.get("window", 75)), softcap=float(other.get("softcap", 2.0))
        )
    assert np.abs(truth - oracle(seq, 149)).max() > 0.012


@pytest.mark.parametrize("stored", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("layer", "context"),
    [
        ("grouped", 1),
        ("grouped", 33),
        ("single", 64),
        ("heads", 540),
        ("tail", 97),
        ("softcap", 130),
        ("window_in_tile", 600),
        ("slopes", 64),
        ("slopes", 600),
        ("slopes_window", 560),
    ],
)
def test_follows_the_pinned_order(
    native_library: ctypes.CDLL, probes: list[Probe], layer: str, context: int, stored: str
) -> None:
    shape = dataclasses.replace(LAYERS[layer], bf16=stored == "bf16")
    seq = sequence(shape, context)
    rows = min(context, 3)
    truth = [
        [attend_order.row(seq, context - rows + row, head) for head in range(seq.q.shape[1])] for row in range(rows)
    ]
    for probe in probes:
        out = kernels(native_library, probe.name).attend(seq, context - rows, rows)
        assert np.array_equal(out.view(np.uint32), np.array(truth).view(np.uint32)), probe.name


def test_merge_and_finish_follow_the_pinned_order(attend: Kernels) -> None:
    rng = np.random.default_rng(3)
    into, later = (rng.standard_normal((5, 2 + 22), np.float32) for _ in range(2))
    into[:, 1] = later[:, 1] = 7.5
    into[0, :], later[1, :] = 0, 0
    into[0, 0] = later[1, 0] = -np.inf
    into[1, 5] = later[0, 5] = -0.0
    merged = into.copy()
    attend.merge(merged, later)
    assert np.array_equal(merged[0].view(np.uint32), later[0].view(np.uint32))
    assert np.array_equal(merged[1].view(np.uint32), into[1].view(np.uint32))
    for i in range(2, 5):
        top = max(into[i, 0], later[i, 0])
        a, b = attend_order.exp(np.array([into[i, 0] - top, later[i, 0] - top], np.float32))
        assert merged[i, 0] == top
        assert np.array_equal(merged[i, 1:], attend_order.fma(later[i, 1:], b, into[i, 1:] * a))
    assert np.array_equal(attend.finish(merged[2:]), merged[2:, 2:] / merged[2:, 1:2])
    assert np.array_equal(attend.finish(np.zeros((2, 9), np.float32)), np.zeros((2, 7), np.float32))


@pytest.mark.parametrize("size", [1e-6, 0.01, 0.3, 0.6, 0.7, 3.0, 40.0])
def test_softcap_uses_an_accurate_tanh(attend: Kernels, size: float) -> None:
    """One key of score `size` against one of score 0: the ratio of their weights is e to the capped score."""
    shape = Shape(key_dim=2, value_dim=2, group=1, bf16=False, softcap=1.0)
    seq = sequence(shape, 2)
    seq.q[:] = seq.k[:] = 0
    seq.q[1, 0, 0] = np.float32(size / shape.scale)
    seq.k[0, 0, 0] = 1
    seq.v[:, 0] = [[1, 0], [0, 1]]
    first, second = attend.attend(seq, 1, 1)[0, 0].astype(np.float64)
    score = float(np.float32(seq.q[1, 0, 0] * np.float32(shape.scale)))
    assert np.log(first / second) == pytest.approx(np.tanh(score), abs=3e-7)


def test_queries_are_rounded_only_for_bf16(attend: Kernels) -> None:
    for stored in (True, False):
        seq = sequence(Shape(bf16=stored), 40)
        whole = attend.attend(seq, 39, 1)
        seq.q = bf16(seq.q)
        assert np.array_equal(whole, attend.attend(seq, 39, 1)) == stored
