"""What must not change a bit of attention: the ISA, neighbours, grouping, placement, and whatever is not visible."""

import ctypes
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native import attend_order
from tests.native.attend_case import CHUNK, Floats, Kernels, Shape, bf16, kernels, sequence
from tests.native.isas import WHOLE_SETS
from tests.native.probe import Probe

SHAPES = {
    "bf16": Shape(),
    "fp32": Shape(bf16=False),
    "single": Shape(group=1, value_dim=34),
    "wide_group": Shape(group=8, key_dim=80, value_dim=112),
    "window": Shape(window=70, group=2),
    "softcap": Shape(softcap=3.0, heads=2, group=1, bf16=False, key_dim=16, value_dim=24),
    "slopes": Shape(heads=2, group=2, key_dim=16, window=90, slopes=(0.5, 0.125, 0.01, 0.001)),
}


@pytest.fixture(scope="module")
def every(native_library: ctypes.CDLL, probes: list[Probe]) -> dict[str, Kernels]:
    """The kernels of every ISA of this CPU, by name."""
    return {probe.name: kernels(native_library, probe.name) for probe in probes}


@pytest.fixture(params=WHOLE_SETS)
def attend(request: pytest.FixtureRequest, every: dict[str, Kernels]) -> Kernels:
    if request.param not in every:
        pytest.skip(f"this CPU has no {request.param}")
    return every[request.param]


def same(a: Floats, b: Floats) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("name", SHAPES)
def test_isas_agree(every: dict[str, Kernels], name: str) -> None:
    for indices, rows in ((1, 1), (70, 64), (530, 20)):
        seq = sequence(SHAPES[name], indices)
        states = [kernel.states(seq, indices - rows, rows) for kernel in every.values()]
        assert all(same(states[0], other) for other in states[1:])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("indices", [64, 150, 560])
def test_row_alone_is_row_among_others(attend: Kernels, name: str, indices: int) -> None:
    seq = sequence(SHAPES[name], indices)
    rows = min(indices, 64)
    together = attend.states(seq, indices - rows, rows)
    for row in (0, 1, 5, 31, 32, rows - 2, rows - 1):
        assert same(together[row : row + 1], attend.states(seq, indices - rows + row, 1)), row


@settings(max_examples=25)
@given(data=st.data())
def test_any_split_of_the_rows(every: dict[str, Kernels], data: st.DataObject) -> None:
    kernel = every[data.draw(st.sampled_from([name for name in every if name != "portable"] or ["portable"]))]
    group, window = data.draw(st.sampled_from([1, 2, 3, 5])), data.draw(st.sampled_from([0, 0, 3, 40, 64, 100, 513]))
    slopes = data.draw(st.sampled_from([(), (0.3, 0.1, 0.02, 0.5, 0.0)[:group]]))
    shape = Shape(key_dim=16, value_dim=18, group=group, window=window, bf16=data.draw(st.booleans()), slopes=slopes)
    indices = data.draw(st.integers(1, 620))
    rows = data.draw(st.integers(1, min(64, indices)))
    borders = sorted(data.draw(st.sets(st.integers(1, rows), max_size=6)) | {0, rows})
    seq = sequence(shape, indices)
    first = indices - rows
    whole = kernel.states(seq, first, rows)
    for start, end in zip(borders, borders[1:], strict=False):
        assert same(whole[start:end], kernel.states(seq, first + start, end - start))


@pytest.mark.parametrize("window", [0, 700])
def test_chunks_are_merged_in_order_by_anyone(attend: Kernels, window: int) -> None:
    """Partial states made by different calls and ISAs merge to the same bits; an unseen chunk changes nothing."""
    seq = sequence(Shape(key_dim=32, value_dim=32, window=window), 2 * CHUNK + 100)
    first = 2 * CHUNK + 98
    whole = attend.states(seq, first, 2)
    for row in range(2):
        partials = [attend.partial(seq, first + row, 1, 0, chunk) for chunk in range(3)]
        state = partials[0].copy()
        for later in partials[1:]:
            attend.merge(state, later)
        assert same(state, whole[row : row + 1])


def test_chunk_without_a_visible_column_is_empty(attend: Kernels) -> None:
    seq = sequence(Shape(window=8, value_dim=18), CHUNK + 20)
    rows = attend.partial(seq, CHUNK, 20, 0, 0)
    assert np.all(rows[:, :, 0] == -np.inf, axis=1).tolist() == [index > 7 - 1 for index in range(20)]
    hidden = rows[7:]
    assert not hidden[:, :, 1:].view(np.uint32).any()


@pytest.mark.parametrize("name", SHAPES)
def test_unseen_slots_change_no_bit(attend: Kernels, name: str) -> None:
    """Slots behind the last index, and later rows' own tokens, may hold anything."""
    for indices in (1, 33, 95, 600):
        seq = sequence(SHAPES[name], indices + 40)
        k, v = seq.k.copy(), seq.v.copy()
        rows = min(indices, 7)
        truth = attend.states(seq, indices - rows, rows)
        for junk in (np.nan, np.inf, -3e38, -0.0):
            seq.behind = junk
            seq.k, seq.v = k[:indices], v[:indices]
            assert same(truth, attend.states(seq, indices - rows, rows)), junk
            # The last row sees what the others must not feel.
            seq.k, seq.v = k.copy(), v.copy()
            seq.k[indices - 1 :], seq.v[indices - 1 :] = junk, junk
            assert same(truth[:-1], attend.states(seq, indices - rows, rows)[:-1]), junk


@pytest.mark.parametrize("indices", [64, 130, 600])
def test_tokens_before_the_window_change_no_bit(attend: Kernels, indices: int) -> None:
    for window in (1, 20, 33, 64, 65):
        seq = sequence(Shape(window=window), indices)
        rows = min(indices, 9)
        truth, before = attend.states(seq, indices - rows, rows), max(0, indices - rows - window + 1)
        k, v = seq.k.copy(), seq.v.copy()
        for junk in (np.nan, 3e38):
            seq.k, seq.v = k.copy(), v.copy()
            seq.k[:before], seq.v[:before] = junk, junk
            assert same(truth, attend.states(seq, indices - rows, rows))
            if window <= indices - rows:  # and what only the first row sees
                seq.k[before], seq.v[before] = junk, junk
                assert same(truth[1:], attend.states(seq, indices - rows, rows)[1:])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("which", ["k", "v", "q"])
def test_nan_fails_the_rows_that_see_it(attend: Kernels, name: str, which: str) -> None:
    seq = sequence(SHAPES[name], 560)
    window = seq.shape.window or 10_000
    for bad in (0, 40, 511, 530, 559):
        spoilt = dataclasses.replace(seq, k=seq.k.copy(), v=seq.v.copy(), q=seq.q.copy())
        getattr(spoilt, which)[bad, 0, 1] = np.nan
        first, rows = 500, 60
        truth, out = attend.attend(seq, first, rows), attend.attend(spoilt, first, rows)
        for row, index in enumerate(range(first, first + rows)):
            touched = index == bad if which == "q" else bad <= index < bad + window
            heads = slice(0, 1) if which == "q" else slice(0, seq.shape.group)  # those that read KV head 0
            part = out[row, heads, 1:2] if which == "v" else out[row, heads]
            assert np.isnan(part).all() == touched
            assert same(out[row, heads.stop :], truth[row, heads.stop :])
            if not touched:
                assert same(out[row], truth[row])


@pytest.mark.parametrize("indices", [1, 64])
def test_nan_everywhere_is_never_an_empty_row(attend: Kernels, indices: int) -> None:
    seq = sequence(Shape(group=1), CHUNK + indices)
    for bad in (slice(CHUNK, None), slice(0, CHUNK), slice(None)):
        spoilt = dataclasses.replace(seq, k=seq.k.copy())
        spoilt.k[bad] = np.nan
        assert np.isnan(attend.attend(spoilt, CHUNK + indices - 1, 1)).all()


@pytest.mark.parametrize("name", SHAPES)
def test_placement_of_blocks_changes_no_bit(attend: Kernels, name: str) -> None:
    seq = sequence(SHAPES[name], 300)
    truth = attend.states(seq, 280, 20)
    for seed in range(1, 4):
        seq.seed = seed
        assert same(truth, attend.states(seq, 280, 20))


@pytest.mark.parametrize("stored", ["bf16", "fp32"])
def test_flushed_values_keep_the_sign_of_the_pinned_order(every: dict[str, Kernels], stored: str) -> None:
    """Tiny negative sums become -0, and adding a hidden column makes +0 of it, whether its 0 * 0 is computed or not."""
    seq = sequence(Shape(key_dim=2, value_dim=48, group=4, bf16=stored == "bf16"), 140, spread=3)
    rng = np.random.default_rng(1)
    tiny = bf16(rng.uniform(1, 1.5, seq.v.shape).astype(np.float32)) * np.float32(-(2.0**-126))
    seq.v = np.where(rng.random(seq.v.shape) < 0.3, tiny, np.float32(-0.0))
    rows = range(120, 136)  # row 127 alone sees a whole tile
    truth = np.array([[attend_order.chunk_state(seq, index, head, 0)[2] for head in range(4)] for index in rows])
    negative = np.signbit(truth) & (truth == 0)
    assert negative[7].any()
    assert not negative[6].any()
    for kernel in every.values():
        assert same(kernel.states(seq, rows[0], len(rows))[..., 2:], truth)
        for row in range(3, 12):
            assert same(kernel.states(seq, rows[row], 1)[0, :, 2:], truth[row])
