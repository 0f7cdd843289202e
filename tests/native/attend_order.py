"""Attention in the pinned order, written out slowly: the kernels must give these very bits.

What it is not: fast. Invariant: every operation is one correctly rounded fp32 operation whose result is a signed zero
where it is tiny, in the order docs/numerics.md gives.
"""

import numpy as np
from tests.native.attend_case import CHUNK, Doubles, Floats, Sequence, bf16
from tests.numerics import order1

TILE, BLOCK = 64, 32
Number = Floats | np.float32
ZERO, ONE = np.float32(0), np.float32(1)


def single(x: Doubles) -> Floats:
    """To fp32; what stays below the normal range after rounding becomes a zero of its sign."""
    tiny = np.abs(x) < 2.0**-100
    high = (np.where(tiny, x, 0) * 2.0**64).astype(np.float32)
    flushed = np.where(np.abs(high) < 2.0**-62, high * ZERO, high * np.float32(2.0**-64))
    return np.where(tiny, flushed, x.astype(np.float32))


def fma(a: Number, b: Number, c: Number) -> Floats:
    """a * b + c rounded once: exact product in fp64, sum rounded to odd, then to fp32."""
    product = np.asarray(np.float64(a) * np.float64(b))
    addend = np.asarray(np.broadcast_to(np.float64(c), product.shape))
    total = np.asarray(product + addend)
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return single(np.where((lost != 0) & even, odd, total))


def add(a: Number, b: Number) -> Floats:
    return single(np.asarray(np.float64(a) + np.float64(b)))


def mul(a: Number, b: Number) -> Floats:
    return single(np.asarray(np.float64(a) * np.float64(b)))


def exp(x: Floats) -> Floats:
    """simd.h's exp."""
    low, high, magic = np.float32(-87.33654), np.float32(88.72283), np.float32(12582912)
    c = np.minimum(np.maximum(x, low), high).astype(np.float32)
    shifted = fma(c, np.float32(1.44269504), magic)
    n = shifted - magic
    r = fma(n, np.float32(-0.693145752), c)
    r = fma(n, np.float32(-1.42860677e-6), r)
    p = np.full_like(x, np.float32(1.38888889e-3))
    for factor in (8.33333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5, 1.0, 1.0):
        p = fma(p, r, np.float32(factor))
    # The last factor is a power of two, so one exact scaling stands for the kernel's two.
    y = np.ldexp(p, n.astype(np.int32))
    return np.where(x < low, ZERO, np.where(x > high, np.float32(np.inf), y)).astype(np.float32)


def tanh(x: Floats) -> Floats:
    size, square = np.abs(x), x * x
    p = np.full_like(x, np.float32(-5.70498872745e-3))
    for factor in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        p = fma(p, square, np.float32(factor))
    low = fma(p * square, x, x)
    high = ONE - np.float32(2) / (exp(size + size) + ONE)
    return np.where(size < np.float32(0.625), low, np.where(x < 0, -high, high)).astype(np.float32)


def chains(a: Floats, b: Floats) -> Floats:
    """Order 1 inside one block of 32: a [32], b [32, n] -> [n]."""
    even = odd = np.zeros(b.shape[1], np.float32)
    for i in range(0, BLOCK, 2):
        even = fma(a[i], b[i], even)
        odd = fma(a[i + 1], b[i + 1], odd)
    return add(even, odd)


def padded(x: Floats, rows: int) -> Floats:
    return np.concatenate([x, np.zeros((rows - len(x), *x.shape[1:]), np.float32)])


def tile_scores(seq: Sequence, q: Floats, k: Floats, slope: float, distance: int) -> Floats:
    """[64] scores of one row with a tile's k [64, key_dim], whose first column stands `distance` behind the row."""
    width = -(-seq.shape.key_dim // BLOCK) * BLOCK
    q, turned = padded(q, width), padded(np.ascontiguousarray(k.T), width)
    s = np.zeros(TILE, np.float32)
    for d in range(0, width, BLOCK):
        s = add(s, chains(q[d : d + BLOCK], turned[d : d + BLOCK]))
    s = mul(s, np.float32(seq.shape.scale))
    if seq.shape.softcap:
        s = np.float32(seq.shape.softcap) * tanh(s / np.float32(seq.shape.softcap))
    if seq.shape.slopes:
        s = fma(np.float32(slope), np.arange(distance, distance + TILE).astype(np.float32), s)
    return s


def lse(m: np.float32, total: np.float32) -> np.float32:
    """The logarithm of a softmax's sum."""
    return np.float32(-np.inf) if total == 0 else np.float32(float(m) + order1.log_double(float(total)))


def columns(seq: Sequence, rows: range, kv_head: int, lses: Floats, start: int) -> Floats:
    """[64] sums of exp(score - lse) of the tile at `start`; lses [rows, group]."""
    group, sums = seq.shape.group, np.zeros(TILE, np.float32)
    k = padded(seq.k[start : start + TILE, kv_head], TILE)
    for row, index in enumerate(rows):
        seen = seq.visible(index)
        shown = np.array([seen.start <= start + j < seen.stop for j in range(TILE)])
        for g in range(group):
            head = kv_head * group + g
            q = bf16(seq.q[index, head]) if seq.shape.bf16 else seq.q[index, head]
            s = tile_scores(seq, q, k, seq.shape.slopes[head] if seq.shape.slopes else 0.0, start - index)
            sums = np.where(shown, add(sums, exp(add(s, -lses[row, g]))), sums)
    return sums


def chunk_state(seq: Sequence, index: int, head: int, chunk: int) -> tuple[np.float32, np.float32, Floats]:
    """m, l (here: total), O (sums) of one row and query head over one chunk."""
    shape, seen, kv_head = seq.shape, seq.visible(index), head // seq.shape.group
    q = bf16(seq.q[index, head]) if shape.bf16 else seq.q[index, head]
    m, total, sums = np.float32(-np.inf), ZERO, np.zeros(shape.value_dim, np.float32)
    for start in range(chunk * CHUNK, (chunk + 1) * CHUNK, TILE):
        shown = np.array([seen.start <= start + j < seen.stop for j in range(TILE)])
        if not shown.any():
            continue
        k, v = (padded(x[start : start + TILE, kv_head], TILE) for x in (seq.k, seq.v))
        s = tile_scores(seq, q, k, shape.slopes[head] if shape.slopes else 0.0, start - index)
        top = max(m, s[shown].max())
        alpha = ZERO if m == -np.inf else exp(np.array([m - top], np.float32))[0]
        p = np.where(shown, exp(s - top), ZERO)
        if shape.bf16:
            p = bf16(p)
        v = np.where(shown[:, None], v, ZERO)
        total, sums = np.float32(mul(total, alpha)), mul(sums, alpha)
        for b in (slice(0, BLOCK), slice(BLOCK, TILE)):
            total = np.float32(add(total, chains(p[b], np.ones((BLOCK, 1), np.float32))[0]))
            sums = add(sums, chains(p[b], v[b]))
        m = top
    return m, total, sums


def row(seq: Sequence, index: int, head: int) -> Floats:
    """[value_dim]: chunks merged in order, then divided."""
    m, total, sums = np.float32(-np.inf), ZERO, np.zeros(seq.shape.value_dim, np.float32)
    for chunk in range(index // CHUNK + 1):
        later_m, later_total, later_sums = chunk_state(seq, index, head, chunk)
        if later_m == -np.inf:
            continue
        if m == -np.inf:
            m, total, sums = later_m, later_total, later_sums
            continue
        top = max(m, later_m)
        a, b = exp(np.array([m - top, later_m - top], np.float32))
        m, total, sums = top, np.float32(fma(later_total, b, mul(total, a))), fma(later_sums, b, mul(sums, a))
    return (sums / total).astype(np.float32)
