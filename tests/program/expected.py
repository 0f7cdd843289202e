"""What ops compute, written once more in fp64 numpy from their formulas, for comparison with every backend."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def rms_norm(x: Numbers, gain: Numbers, eps: float) -> Numbers:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * gain


def rms_norm_of_heads(x: Numbers, gain: Numbers, eps: float, heads: int) -> Numbers:
    return rms_norm(x.reshape(len(x), heads, -1), gain, eps).reshape(x.shape)


def layer_norm(x: Numbers, gain: Numbers, bias: Numbers, eps: float) -> Numbers:
    apart = x - x.mean(axis=-1, keepdims=True)
    return apart / np.sqrt(np.mean(apart**2, axis=-1, keepdims=True) + eps) * gain + bias


def silu(x: Numbers) -> Numbers:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Numbers) -> Numbers:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rope(x: Numbers, frequencies: Numbers, heads: int, *, factor: float = 1.0, interleaved: bool = False) -> Numbers:
    """x [T, heads x dim] at positions 0 .. T - 1, turned as complex numbers."""
    turned = x.reshape(len(x), heads, -1).copy()
    count = len(frequencies)
    first = slice(0, 2 * count, 2) if interleaved else slice(0, count)
    second = slice(1, 2 * count, 2) if interleaved else slice(count, 2 * count)
    pairs = turned[..., first] + 1j * turned[..., second]
    pairs *= factor * np.exp(1j * np.arange(len(x))[:, None] * frequencies)[:, None]
    turned[..., first], turned[..., second] = pairs.real, pairs.imag
    return turned.reshape(x.shape)


def attention(
    q: Numbers, k: Numbers, v: Numbers, kv_heads: int, scale: float, *, window: int | None = None, softcap: float = 0.0,
    slopes: tuple[float, ...] = (),
) -> Numbers:  # fmt: skip
    """Causal attention of one whole sequence, row by row; q, k, v are [T, heads x dim], k and v of `kv_heads` heads."""
    length = len(q)
    keys, values = k.reshape(length, kv_heads, -1), v.reshape(length, kv_heads, -1)
    queries = q.reshape(length, -1, keys.shape[-1])
    group = queries.shape[1] // kv_heads
    out = np.zeros((length, queries.shape[1], values.shape[-1]))
    for row in range(length):
        first = 0 if window is None else max(0, row - window + 1)
        for head in range(queries.shape[1]):
            scores = keys[first : row + 1, head // group] @ queries[row, head] * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if slopes:
                scores = scores + slopes[head] * np.arange(first - row, 1)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ values[first : row + 1, head // group]
    return out.reshape(length, -1)
