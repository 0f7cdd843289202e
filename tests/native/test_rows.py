"""Work on single rows: gathering, norms, activations, rotary positions, KV writes; the same bits on every ISA."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.native.probe import BLOCK, CONVERSIONS, GUARD, Bytes, Floats, KVGeometry, Probe, fitting, padded, same_bits

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 576)
FP32 = np.float32
Doubles = NDArray[np.float64]


def bf16(x: Floats) -> Floats:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def chains(x: Floats, unit: int = BLOCK) -> Floats:
    """Order-1 sums of the blocks (or halves) of x [n]. Without fma, so only for sums and for exact products."""
    blocks = np.zeros(padded(len(x)), np.float32)
    blocks[: len(x)] = x
    pairs = blocks.reshape(-1, unit // 2, 2)
    sums = np.zeros((len(pairs), 2), np.float32)
    for i in range(unit // 2):
        sums = sums + pairs[:, i]
    return sums[:, 0] + sums[:, 1]


def all_sums(x: Floats) -> Floats:
    """What prepare gives: of blocks, then of halves."""
    return np.concatenate([chains(x), chains(x, BLOCK // 2)])


# ---- gathering ----


@pytest.mark.parametrize("packed", sorted(CONVERSIONS))
def test_gathered_rows_are_the_decoded_file(probes: list[Probe], packed: str) -> None:
    rng = np.random.default_rng(1)
    for shape in ((40, fitting(packed, 64)), (17, fitting(packed, 290)), (20, fitting(packed, 45))):
        for from_format in CONVERSIONS[packed]:
            w = probes[0].weights(packed, from_format, shape, rng)
            values = w.values()
            for probe in probes:
                for row in range(shape[0]):
                    assert same_bits(probe.gather_row(w, row), values[row]), (probe, row)
                assert same_bits(probe.gather_row(w, 3, scale=24.0), values[3] * FP32(24))


# ---- preparation and norms ----


@pytest.mark.parametrize("n", LENGTHS)
def test_prepare_without_norm(probes: list[Probe], n: int) -> None:
    x = np.random.default_rng(2).standard_normal((3, n)).astype(np.float32)
    for probe in probes:
        for rounded in (True, False):
            out, sums = probe.prepare(x, rounded=rounded)
            expected = bf16(x) if rounded else x
            assert same_bits(np.ascontiguousarray(out[:, :n]), expected)
            assert not out[:, n:].any()
            assert all(same_bits(sums[t], all_sums(expected[t])) for t in range(3))
        _, sums = probe.prepare(x, halves=False)
        blocks = padded(n) // BLOCK
        assert same_bits(sums[0, :blocks], chains(bf16(x)[0]))
        assert (sums[:, blocks:] == GUARD).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_norm_in_order_1(probes: list[Probe], n: int) -> None:
    rng = np.random.default_rng(3)
    x = bf16(
        rng.standard_normal((1, n)).astype(np.float32) * 4
    )  # squares of bf16 are exact in fp32: fma = product and sum
    gain, eps = rng.uniform(0.5, 2, n).astype(np.float32), 1e-5
    total = FP32(0)
    for block in chains(x[0] * x[0]):
        total += block
    inverse = FP32(1) / np.sqrt(total / FP32(n) + FP32(eps))
    expected = (x[0] * inverse) * gain
    for probe in probes:
        assert same_bits(probe.rms_norm(x[0], gain, eps), expected), probe
        out, sums = probe.prepare(x, gain=gain, eps=eps, rounded=False)
        assert same_bits(out[0, :n], expected)
        assert not out[0, n:].any()
        out, sums = probe.prepare(x, gain=gain, eps=eps, rounded=True)
        assert same_bits(out[0, :n], bf16(expected))
        assert same_bits(sums[0], all_sums(out[0]))


def test_norm_close_to_float64_and_equal_on_every_isa(probes: list[Probe]) -> None:
    rng = np.random.default_rng(4)
    for n in LENGTHS:
        x, gain = rng.standard_normal((2, n)).astype(np.float32)
        exact = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-6) * gain
        results = [probe.rms_norm(x, gain, 1e-6) for probe in probes]
        assert np.allclose(results[0], exact, rtol=1e-5, atol=0)
        assert all(same_bits(result, results[0]) for result in results)


def test_padding_is_zero_even_behind_infinity_and_nan(probes: list[Probe]) -> None:
    for value in (np.nan, np.inf, 0.0):
        x = np.full((1, 33), value, np.float32)
        for probe in probes:
            out, _ = probe.prepare(x, gain=np.full(33, np.inf, np.float32), eps=0.0)
            assert not out[0, 33:].any()
            assert np.isnan(out[0, :33]).all()


# ---- element-wise ----


@pytest.mark.parametrize("n", LENGTHS)
def test_sum_of_rows(probes: list[Probe], n: int) -> None:
    x, residual = np.random.default_rng(5).standard_normal((2, n)).astype(np.float32)
    for probe in probes:
        assert same_bits(probe.add(x, residual), residual + x)


def silu(g: Doubles) -> Doubles:
    return np.asarray(g / (1 + np.exp(-g)))


def gelu_tanh(g: Doubles) -> Doubles:
    return np.asarray(0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))))


@pytest.mark.parametrize(("activation", "function"), [(0, silu), (1, gelu_tanh)])
def test_gated_activations(probes: list[Probe], activation: int, function: Callable[[Doubles], Doubles]) -> None:
    gate = np.concatenate([np.linspace(-20, 20, 4001), [-0.0, 0.0, 1e-30, -1e-30]]).astype(np.float32)
    up = np.random.default_rng(6).uniform(0.5, 2, len(gate)).astype(np.float32)
    exact = function(gate.astype(np.float64)) * up
    results = [probe.gated(gate, up, activation) for probe in probes]
    # The exponent of e^(-2u) carries the roundings of u, each worth up to |u| * eps of the result.
    assert np.allclose(results[0], exact, rtol=1e-5 if activation else 1e-6, atol=1e-12)
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("activation", [0, 1])
def test_gated_far_out(probes: list[Probe], activation: int) -> None:
    gate = np.array([200, -200, 1e20, -1e20, np.nan, 3, np.inf], np.float32)
    for probe in probes:
        out = probe.gated(gate, np.ones_like(gate), activation)
        assert out[:4].tolist() == [200, 0, FP32(1e20), 0]
        assert np.isnan(out[4])
        assert out[6] == np.inf
        assert probe.gated(np.full(3, 3, np.float32), np.ones(3, np.float32), activation)[0] == out[5]


@pytest.mark.parametrize("n", LENGTHS)
def test_tails_do_the_arithmetic_of_whole_vectors(probes: list[Probe], n: int) -> None:
    gate, up = np.random.default_rng(7).standard_normal((2, 1024)).astype(np.float32)
    for probe in probes:
        for activation in (0, 1):
            whole = probe.gated(gate, up, activation)
            assert same_bits(probe.gated(gate[-n:].copy(), up[-n:].copy(), activation), whole[-n:])


# ---- rotary positions ----


def frequencies(n: int, theta: float) -> Doubles:
    return np.asarray(theta ** (-np.arange(n, dtype=np.float64) / n))


def ulps(a: Floats, b: Floats) -> int:
    """Largest distance in representable numbers."""

    def place(x: Floats) -> NDArray[np.int64]:
        words = x.view(np.int32).astype(np.int64)
        return np.where(words < 0, -(words & 0x7FFFFFFF), words)

    return int(np.abs(place(a) - place(b)).max())


@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5])
def test_angles(probes: list[Probe], theta: float) -> None:
    frequency = frequencies(32, theta)
    rng = np.random.default_rng(8)
    # 355, 103993 and 208341 are almost multiples of pi: the reduction must keep the small rest exact.
    positions = [*range(400), *rng.integers(400, 200_000, 1500).tolist(), 103_993, 199_999, 208_341, 2**22]
    for position in positions:
        results = [probe.rope_angles(position, frequency) for probe in probes]
        angle = position * frequency
        expected = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
        assert ulps(results[0], expected) <= 1, position
        assert all(same_bits(result, results[0]) for result in results)


def test_angles_at_zero_and_with_a_factor(probes: list[Probe]) -> None:
    frequency = frequencies(5, 1e4)
    for probe in probes:
        assert probe.rope_angles(0, frequency).tolist() == [[1.0] * 5, [0.0] * 5]
        scaled = probe.rope_angles(77, frequency, factor=1.5)
        exact = 1.5 * np.stack([np.cos(77 * frequency), np.sin(77 * frequency)])
        assert ulps(scaled, exact.astype(np.float32)) <= 1


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("n", "dim"), [(32, 64), (1, 2), (5, 12), (16, 32), (17, 34), (24, 96), (40, 80)])
def test_rotation(probes: list[Probe], n: int, dim: int, interleaved: bool) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((3, dim)).astype(np.float32)
    angles = probes[0].rope_angles(1234, frequencies(n, 1e4))
    cos, sin = angles
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
    expected = x.copy()
    expected[:, first] = x[:, first] * cos - x[:, second] * sin
    expected[:, second] = x[:, second] * cos + x[:, first] * sin
    for probe in probes:
        for in_place in (False, True):
            assert same_bits(probe.rope(x, angles, interleaved=interleaved, in_place=in_place), expected), probe


# ---- keys and values ----


def read_kv(pool: Bytes, geometry: KVGeometry, block: int, head: int) -> tuple[Floats, Floats]:
    """K [tokens, key_dim] and V [tokens, value_dim] of one block and head, by the words of kernels.h."""
    block_bytes, layer_offset, key_dim, value_dim, is_bf16 = geometry
    size = 2 if is_bf16 else 4
    start = block * block_bytes + layer_offset + head * BLOCK * (key_dim + value_dim) * size
    stored = pool[start : start + BLOCK * (key_dim + value_dim) * size]
    values = stored.view(ml_dtypes.bfloat16).astype(np.float32) if is_bf16 else stored.view(np.float32)
    k, v = values[: BLOCK * key_dim], values[BLOCK * key_dim :]
    if not is_bf16:
        return k.reshape(key_dim, BLOCK).T, v.reshape(BLOCK, value_dim)
    keys = k.reshape(key_dim // 2, BLOCK, 2).transpose(1, 0, 2).reshape(BLOCK, key_dim)
    return keys, v.reshape(BLOCK // 2, value_dim, 2).transpose(0, 2, 1).reshape(BLOCK, value_dim)


@pytest.mark.parametrize("is_bf16", [True, False])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(64, 64), (2, 6), (48, 32), (128, 130)])
def test_kv_writes_fill_their_place_only(probes: list[Probe], key_dim: int, value_dim: int, is_bf16: bool) -> None:
    heads, blocks, layer_offset, size = 2, 2, 128, 2 if is_bf16 else 4
    block_bytes = layer_offset + heads * BLOCK * (key_dim + value_dim) * size + 64
    geometry = (block_bytes, layer_offset, key_dim, value_dim, is_bf16)
    rng = np.random.default_rng(10)
    for probe in probes:
        pool = np.full(blocks * block_bytes, 0x55, np.uint8)
        places = [(block, slot, head) for block in range(blocks) for slot in range(BLOCK) for head in range(heads)]
        for block, slot, head in rng.permutation(places).tolist():
            k, v = (rng.standard_normal(dim).astype(np.float32) for dim in (key_dim, value_dim))
            before = pool.copy()
            probe.kv_write(pool, geometry, (block, slot, head), k, v)
            keys, values = read_kv(pool, geometry, block, head)
            assert same_bits(keys[slot].copy(), bf16(k) if is_bf16 else k)
            assert same_bits(values[slot].copy(), bf16(v) if is_bf16 else v)
            assert np.count_nonzero(pool != before) <= (key_dim + value_dim) * size
        for block in range(blocks):
            assert (pool[block * block_bytes : block * block_bytes + layer_offset] == 0x55).all()
            assert (pool[(block + 1) * block_bytes - 64 : (block + 1) * block_bytes] == 0x55).all()


def test_kv_rounding_goes_to_even_and_keeps_nan(probes: list[Probe]) -> None:
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0x80000001], np.uint32)
    k = words.view(np.float32)
    geometry = (BLOCK * 12 * 2, 0, 6, 6, True)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = bf16(k)
    for probe in probes:
        pool = np.zeros(geometry[0], np.uint8)
        probe.kv_write(pool, geometry, (0, 31, 0), k, k)
        keys, values = read_kv(pool, geometry, 0, 0)
        assert same_bits(keys[31].copy(), expected)
        assert same_bits(values[31].copy(), expected)
