"""Attention in pieces: ranges of tiles that go on from stored states, rows of any sequences, blocks of no table."""

import ctypes
import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native import attend_order
from tests.native.attend_case import (
    BLOCK,
    FORBIDDEN,
    AttendRecord,
    Floats,
    Kernels,
    RowRecord,
    Sequence,
    Shape,
    bf16,
    kernels,
    sequence,
)
from tests.native.probe import Probe

TILE, CHUNK_TILES = 64, 8
SHAPES = {
    "bf16": Shape(),
    "fp32": Shape(bf16=False),
    "tail": Shape(group=1, key_dim=48, value_dim=34),
    "window": Shape(window=170, group=2),
    "softcap": Shape(softcap=3.0, heads=2, group=1, key_dim=16, value_dim=24),
    "slopes": Shape(heads=2, group=2, key_dim=16, window=300, slopes=(0.5, 0.125, 0.01, 0.001)),
}


@pytest.fixture(scope="module")
def every(native_library: ctypes.CDLL, probes: list[Probe]) -> dict[str, Kernels]:
    """The kernels of every ISA of this CPU, by name."""
    return {probe.name: kernels(native_library, probe.name) for probe in probes}


def same(a: Floats, b: Floats) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def empty(rows: int, shape: Shape) -> Floats:
    return np.full((rows, shape.group, 2 + shape.value_dim), 777.0, np.float32)


def chosen(seq: Sequence, indices: list[int], head: int = 0) -> AttendRecord:
    """A call of the rows at these indices only, as if each were of another sequence with the same blocks."""
    record = seq.record(indices[0], indices[-1] - indices[0] + 1, head)
    q = [np.ascontiguousarray(seq.q[index]) for index in indices]
    rows = (RowRecord * len(q))(*(RowRecord(row.ctypes.data, None, at) for row, at in zip(q, indices, strict=True)))
    seq.keeps += [q, rows]
    record.rows, record.num_rows = ctypes.addressof(rows), len(indices)
    return record


@settings(max_examples=40)
@given(data=st.data())
def test_any_ranges_of_tiles(every: dict[str, Kernels], data: st.DataObject) -> None:
    """Rows at any ascending indices, a chunk's tiles in any ranges, each by any ISA: the bits of each row alone."""
    shape = SHAPES[data.draw(st.sampled_from(list(SHAPES)))]
    indices = sorted(data.draw(st.lists(st.integers(0, 700), min_size=1, max_size=20)))
    seq = sequence(shape, indices[-1] + 1)
    head = data.draw(st.integers(0, shape.heads - 1))
    chunk = data.draw(st.integers(0, indices[-1] // 512))
    cuts = data.draw(st.sets(st.integers(1, CHUNK_TILES - 1), max_size=4))
    borders = [chunk * CHUNK_TILES + cut for cut in sorted(cuts | {0, CHUNK_TILES})]
    states = empty(len(indices), shape)
    record = chosen(seq, indices, head)
    for first, last in zip(borders, borders[1:], strict=False):
        kernel = every[data.draw(st.sampled_from(list(every)))]
        kernel.tiles(record, first, last, states, resume=first > borders[0])
    for row, index in enumerate(indices):
        alone = next(iter(every.values())).partial(seq, index, 1, head, chunk)
        if chunk > index // 512 or (chunk + 1) * 512 <= seq.visible(index).start:
            assert np.isneginf(states[row, :, 0]).all()
            assert not states[row, :, 1:].any()
        else:
            assert same(states[row : row + 1], alone), index


@pytest.mark.parametrize("name", SHAPES)
def test_blocks_beside_the_table(every: dict[str, Kernels], name: str) -> None:
    """From `tail_block` on the table is not looked at: blocks stand one behind the other in memory of their own."""
    seq = sequence(SHAPES[name], 230)
    for kernel in every.values():
        truth = kernel.partial(seq, 200, 30, 0, 0)
        for first in (0, 3, 6, 7):
            record = seq.record(200, 30)
            blocks = [seq.packed(block, 0) for block in range(first, 8)]
            tail = np.concatenate(blocks).astype(ml_dtypes.bfloat16 if seq.shape.bf16 else np.float32)
            seq.table[first:] = FORBIDDEN
            record.tail, record.tail_block = tail.ctypes.data, first
            states = empty(30, seq.shape)
            kernel.tiles(record, 0, CHUNK_TILES, states, resume=False)
            assert same(states, truth)


def test_what_is_not_called_for_is_not_read(every: dict[str, Kernels]) -> None:
    """Tiles outside of the range may be anywhere: their blocks are those of other sequences."""
    seq = sequence(Shape(), 400)
    for kernel in every.values():
        record = seq.record(395, 5)
        table, whole = seq.table, empty(5, seq.shape)
        kernel.tiles(record, 2, 4, whole, resume=False)
        table[: 2 * 2] = table[4 * 2 :] = FORBIDDEN
        part = empty(5, seq.shape)
        kernel.tiles(record, 2, 4, part, resume=False)
        assert same(part, whole)


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 33_000])
def test_long_sequences(every: dict[str, Kernels], window: int) -> None:
    """40,000 indices: rows alone, together and in ranges, by every ISA."""
    shape = Shape(key_dim=4, value_dim=6, group=1, window=window, slopes=(2.0**-12,))
    seq, first = sequence(shape, 40_000), 39_950
    states = [kernel.states(seq, first, 50) for kernel in every.values()]
    assert all(same(states[0], other) for other in states[1:])
    kernel = list(every.values())[-1]
    for row in (0, 17, 49):
        assert same(kernel.states(seq, first + row, 1), states[0][row : row + 1])
    seen = seq.visible(39_999)
    k, v = seq.k[seen, 0].astype(np.float64), seq.v[seen, 0].astype(np.float64)
    q = bf16(seq.q[39_999, 0]).astype(np.float64)
    s = k @ q * shape.scale + 2.0**-12 * np.arange(1 - len(k), 1)
    p = np.exp(s - s.max())
    np.testing.assert_allclose(kernel.finish(states[0])[49, 0], p @ v / p.sum(), atol=6e-3)


def test_indices_near_the_largest(every: dict[str, Kernels]) -> None:
    """Nothing overflows: the last index that a step may have, with and without a window."""
    top = 2**31 - 1 - 512
    for window in (1, 70, 2**31 - 1):
        for kernel in every.values():
            seq = sequence(Shape(key_dim=2, value_dim=2, group=1, window=min(window, 70)), 200)
            record = seq.record(128, 1)
            record.window = window
            tiles = 1 if window == 1 else 2
            tail = np.concatenate([seq.packed(4, 0)] * 4).astype(ml_dtypes.bfloat16)
            record.tail, record.tail_block = tail.ctypes.data, top // BLOCK - 3
            rows = RowRecord(seq.q[128].ctypes.data, None, top)
            record.rows = ctypes.addressof(rows)
            states = empty(1, seq.shape)
            kernel.tiles(record, top // TILE + 1 - tiles, top // TILE + 1, states, resume=False)
            assert np.isfinite(states).all() and states[0, 0, 1] >= 1


# ---- LSE and column sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_lse(every: dict[str, Kernels], name: str) -> None:
    seq = sequence(SHAPES[name], 600)
    states = next(iter(every.values())).states(seq, 590, 10)
    expected = np.array([[attend_order.lse(state[0], state[1]) for state in row] for row in states])
    for kernel in every.values():
        assert same(kernel.lse(states), expected)
    shape, index = seq.shape, 599
    seen = seq.visible(index)
    for head in range(shape.heads * shape.group):
        q = bf16(seq.q[index, head]) if shape.bf16 else seq.q[index, head]
        s = seq.k[seen, head // shape.group].astype(np.float64) @ q.astype(np.float64) * shape.scale
        s = shape.softcap * np.tanh(s / shape.softcap) if shape.softcap else s
        s = s + shape.slopes[head] * np.arange(1 - len(s), 1) if shape.slopes else s
        truth = np.log(np.exp(s - s.max()).sum()) + s.max()
        assert expected[-1, head] == pytest.approx(truth, abs=4e-3 if shape.bf16 else 1e-5)


def test_lse_of_nothing_and_of_nan(every: dict[str, Kernels]) -> None:
    states = np.zeros((3, 4), np.float32)
    states[0, 0], states[1], states[2, :2] = -np.inf, np.nan, (3.5, 1)
    for kernel in every.values():
        found = kernel.lse(states)
        assert found[0] == -np.inf
        assert np.isnan(found[1])
        assert found[2] == 3.5


@pytest.mark.parametrize("name", SHAPES)
def test_columns_follow_the_pinned_order(every: dict[str, Kernels], name: str) -> None:
    seq = sequence(SHAPES[name], 200)
    first, rows, head = 150, 9, seq.shape.heads - 1
    lses = next(iter(every.values())).lse(next(iter(every.values())).partial(seq, first, rows, head, 0))
    truth = np.concatenate(
        [attend_order.columns(seq, range(first, first + rows), head, lses, start) for start in range(0, 192, TILE)]
    )
    for kernel in every.values():
        sums = np.zeros(192, np.float32)
        kernel.columns(seq.record(first, rows, head), 0, 3, lses, sums)
        assert same(sums, truth)
        again = np.zeros(192, np.float32)  # any split of rows and tiles, in order
        for start, end in ((0, 2), (2, 3), (3, 9)):
            for tile in range(3):
                part = again[tile * TILE : (tile + 1) * TILE]
                kernel.columns(
                    seq.record(first + start, end - start, head), tile, tile + 1, lses[start:end].copy(), part
                )
        assert same(again, truth)


def test_columns_of_a_row_add_up_to_its_heads(every: dict[str, Kernels]) -> None:
    seq = sequence(dataclasses.replace(Shape(), bf16=False), 130)
    for kernel in every.values():
        lses = kernel.lse(kernel.partial(seq, 129, 1, 0, 0))
        sums = np.zeros(192, np.float32)
        kernel.columns(seq.record(129, 1), 0, 3, lses, sums)
        assert sums.sum() == pytest.approx(3, abs=1e-4)
        assert not sums[130:].any()
