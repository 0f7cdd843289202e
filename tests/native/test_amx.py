"""The kernels of AMX on emulated tile registers, and on real ones where the CPU has them.

What goes through the tiles, and that no way of cutting the work changes a bit. Products and attention in all shapes are
in the tests of every set.
"""

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from tests.native.attend_case import Sequence, Shape, bf16, kernels, sequence
from tests.native.int8_case import IntProbe, rounded
from tests.native.probe import CONVERSIONS, Floats, Probe, Weights, fitting, same_bits

DENSE, CODED = ("bf16",), tuple(sorted(name for name in CONVERSIONS if name.startswith("q")))
ROW_COUNTS = (1, 15, 16, 17, 31, 33)


@pytest.fixture
def amx(probes: list[Probe]) -> list[Probe]:
    found = [probe for probe in probes if probe.name.startswith("amx")]
    if not found:
        pytest.skip("no kernels of AMX for this kind of processor")
    return found


def bf16_rows(count: int, cols: int, rng: np.random.Generator, smallest: int = -20, largest: int = 0) -> Floats:
    """Random bf16 numbers as fp32, of sizes from 2^smallest to 2^largest."""
    x = rng.standard_normal((count, cols)) * np.exp2(rng.uniform(smallest, largest, (count, cols)))
    return np.asarray((x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32))


def dense(probe: Probe, values: Floats) -> Weights:
    """bf16 numbers [outputs, cols] as packed weights."""
    raw = np.frombuffer((values.view(np.uint32) >> 16).astype(np.uint16).tobytes(), np.uint8)
    return probe.packed("bf16", "BF16", (values.shape[0], values.shape[1]), raw)


def counted(library: ctypes.CDLL, work: Callable[[], object]) -> int:
    """Tile products that the emulated registers made meanwhile."""
    library.probe_tile_products.restype = ctypes.c_uint64
    before = int(library.probe_tile_products())
    work()
    assert library.probe_tiles_released()
    return int(library.probe_tile_products()) - before


@pytest.mark.parametrize(("packed", "rows", "tiled"), [
    ("bf16", 1, True),
    ("bf16", 40, True),
    ("f32", 40, False),
    ("f16", 40, False),
    ("q4m", 15, False),
    ("q4m", 16, True),
    ("q8", 16, True),
    ("q2khm", 16, True),
])  # fmt: skip
def test_what_goes_through_the_tiles(
    native_library: ctypes.CDLL, amx: list[Probe], packed: str, rows: int, tiled: bool
) -> None:
    rng = np.random.default_rng(1)
    w = amx[0].weights(packed, CONVERSIONS[packed][0], (32, fitting(packed, 64)), rng)
    x, sums = amx[0].prepare(bf16_rows(rows, w.cols, rng))
    made = counted(native_library, lambda: amx[0].matmul(w, x, sums))
    blocks, row_groups, halves = w.cols // 32, -(-rows // 16), 2 if w.unit < 32 else 1
    assert made == (2 * blocks * row_groups * halves if tiled else 0)
    exact = x + np.float32(2**-20)  # rows that are not bf16 cannot
    assert counted(native_library, lambda: amx[0].matmul(w, exact, sums)) == 0


@pytest.mark.parametrize(
    ("group", "rows", "bf16", "tiled"), [(3, 3, True, True), (3, 2, True, False), (3, 3, False, False)]
)
def test_attention_of_few_pairs_and_of_fp32_uses_no_tile(
    native_library: ctypes.CDLL, amx: list[Probe], group: int, rows: int, bf16: bool, tiled: bool
) -> None:
    seq = sequence(Shape(group=group, bf16=bf16), 200)
    attend = kernels(native_library, amx[0].name)
    made = counted(native_library, lambda: attend.attend(seq, 197, rows))
    # Four tiles of 64: two K-blocks of 64 dims for each 16 tokens, and two blocks of tokens for each 16 dims; in the
    # last tile only the first block is seen, and not by all.
    assert made == (3 * (8 + 8) + 4 if tiled else 0)


# Of x and of the weights: denormal numbers among them; products that are denormal; both.
TINY = (((-135, -115), (-20, 0)), ((-75, -50), (-75, -50)), ((-140, -20), (-135, -100)))


@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize(("of_x", "of_w"), TINY)
def test_denormal_numbers_in_the_tiles(
    probes: list[Probe], rows: int, of_x: tuple[int, int], of_w: tuple[int, int]
) -> None:
    rng = np.random.default_rng(rows)
    w, x, sums = (
        dense(probes[0], bf16_rows(33, 96, rng, *of_w)),
        bf16_rows(rows, 96, rng, *of_x),
        np.zeros((rows, 9), np.float32),
    )
    expected = probes[0].matmul(w, x, sums)
    plain = x.astype(np.float64) @ w.codes.astype(np.float64).T
    assert (np.abs(plain - expected[:, :33]) > 0).any()  # something was flushed or rounded
    assert (np.abs(expected) < 2.0**-90).all()
    for probe in probes[1:]:
        assert same_bits(probe.matmul(w, x, sums), expected), probe


def test_products_of_8_bit_rows_use_tiles_from_16_rows_on(native_library: ctypes.CDLL, amx: list[Probe]) -> None:
    rng = np.random.default_rng(2)
    w, ints = amx[0].weights("q4m", "Q4_1", (32, 64), rng), IntProbe(amx[0])
    for rows, made in ((15, 0), (16, 2 * 2)):
        x = rounded(bf16_rows(rows, 64, rng))
        assert counted(native_library, partial(ints.matmul, w, x)) == made


def test_hidden_columns_turn_minus_zero_into_zero(native_library: ctypes.CDLL, probes: list[Probe]) -> None:
    """Sums that a later tile makes too small, products too small to see, and a block of which rows see only a part."""
    k, v, q = (np.zeros((128, 1, 32), np.float32) for _ in range(3))
    scale, tiny = np.float32(32**-0.5), np.float32(2.0**-126)
    q[:, :, 0] = 1
    k[64:, :, 0], k[64, :, 0] = 6 / scale, 7 / scale  # weights of 1 and of less
    v[:64], v[65:] = -2 * tiny, -tiny
    seq = Sequence(Shape(32, 32, 1, 8), bf16(k), v, np.repeat(q, 8, axis=1))
    for probe in probes:
        states = kernels(native_library, probe.name).states(seq, 100, 20)
        assert (states[..., 2:].view(np.uint32) == 0).all(), probe
        whole = kernels(native_library, probe.name).states(seq, 127, 1)
        assert (whole[..., 2:].view(np.uint32) == 0x80000000).all(), probe


def test_a_sum_of_minus_zero_leaves_minus_zero(probes: list[Probe]) -> None:
    tiny = np.float32(2.0**-126)
    raw = np.tile(np.frombuffer(np.float16(1).tobytes() + bytes([1] * 32), np.uint8), 16 * 3)
    w = probes[0].packed("q8", "Q8_0", (16, 96), raw)
    x = np.zeros((17, 96), np.float32)
    x[:, 0], x[:, 32] = -1.5 * tiny, tiny  # together too small to see, below zero
    x[:, 92:94], x[:, 94:] = -1.5 * tiny, tiny  # each chain of the last block likewise
    expected = probes[0].order1(w, x, np.zeros((17, 9), np.float32))
    assert (expected.view(np.uint32) == 0x80000000).all()
    for probe in probes:
        assert same_bits(probe.matmul(w, x, np.zeros((17, 9), np.float32)), expected), probe


@pytest.mark.parametrize("packed", DENSE + CODED)
def test_panels_of_a_call_change_no_bit(probes: list[Probe], amx: list[Probe], packed: str) -> None:
    rng = np.random.default_rng(5)
    w = probes[0].weights(packed, CONVERSIONS[packed][0], (75, fitting(packed, 320)), rng)
    for rows in ROW_COUNTS:
        x, sums = probes[0].prepare(bf16_rows(rows, w.cols, rng))
        expected = probes[0].matmul(w, x, sums)
        for probe in amx:
            for together in (2, 3, 5):
                assert same_bits(probe.matmul(w, x, sums, together=together), expected), (probe, rows, together)


@pytest.mark.parametrize("packed", ["bf16", "q4m"])
def test_rows_beyond_the_cache_change_no_bit(probes: list[Probe], amx: list[Probe], packed: str) -> None:
    rng = np.random.default_rng(6)
    w = probes[0].weights(packed, CONVERSIONS[packed][0], (48, 4096), rng)
    x, sums = probes[0].prepare(bf16_rows(70, w.cols, rng))  # 64 of these rows are half a megabyte of bf16
    expected = probes[1].matmul(w, x, sums)
    for probe in amx:
        assert same_bits(probe.matmul(w, x, sums, together=3), expected)


def test_the_self_test_tells_right_from_wrong(native_library: ctypes.CDLL, probes: list[Probe]) -> None:
    assert all(native_library.probe_products_agree(probe.door[1]) for probe in probes)
    assert not native_library.probe_wrong_products_agree()
