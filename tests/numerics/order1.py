"""docs/numerics.md in plain Python, section by section, one number at a time.

What it is not: derived from the kernels, or fast. Invariant: numbers are Python floats; where the page says fp32 they
hold exactly an fp32 number, and an fma is rounded once from its exact value.
"""

import ctypes
import math
import struct
from collections.abc import Sequence
from fractions import Fraction

SMALLEST_NORMAL, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
INF = math.inf
BLOCK, TILE, LANES, VOCAB_CHUNK = 32, 64, 16, 4096
GROUP = 128  # columns of a row of 8 bits that share a scale
Numbers = Sequence[float]

# ---------------------------------------------------------------------------------------------------
# one operation


def nearest(exact: Fraction) -> float:
    """The nearest fp32, ties to even; below the normal range a zero of the same sign."""
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    result = math.ldexp(round(size / Fraction(2) ** (exponent - 23)), exponent - 23)
    result = INF if result > LARGEST else 0.0 if result < SMALLEST_NORMAL else result
    return math.copysign(result, -1.0 if exact < 0 else 1.0)


def f32(x: float) -> float:
    """fp64 to fp32. For one + - * / or root of fp32 numbers, done in fp64, that is as good as rounding once."""
    result = ctypes.c_float(x).value
    return math.copysign(0.0, x) if 0 < abs(result) < SMALLEST_NORMAL else result


def literal(text: str) -> float:
    """A decimal constant of the page as fp32."""
    return nearest(Fraction(text))


def fma(a: float, b: float, c: float) -> float:
    product = a * b  # exact in fp64
    if not (math.isfinite(product) and math.isfinite(c)):
        return f32(product + c)
    exact = Fraction(product) + Fraction(c)
    return nearest(exact) if exact else product + c


def fma64(a: float, b: float, c: float) -> float:
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def bf16(x: float) -> float:
    """To the nearest bf16, ties to even."""
    if x != x:
        return x
    word = struct.unpack("<I", struct.pack("<f", x))[0]
    word = (word + 0x7FFF + (word >> 16 & 1)) & 0xFFFF0000
    value: float = struct.unpack("<f", struct.pack("<I", word))[0]
    return value


# ---------------------------------------------------------------------------------------------------
# section 2: sums


def block(x: Numbers, w: Numbers, size: int = BLOCK) -> float:
    """Up to `size` products, padded with zeros."""
    chain = [0.0, 0.0]
    for k in range(size):
        a, b = (x[k], w[k]) if k < len(x) else (0.0, 0.0)
        chain[k % 2] = fma(a, b, chain[k % 2])
    return f32(chain[0] + chain[1])


def group(x: Numbers, w: Numbers, size: int) -> float:
    """What has one scale: a block, or several whose sums are added from +0."""
    if size <= BLOCK:
        return block(x, w, size)
    total = 0.0
    for first in range(0, len(x), BLOCK):
        total = f32(total + block(x[first : first + BLOCK], w[first : first + BLOCK]))
    return total


def product(
    x: Numbers, w: Numbers, scales: Numbers | None = None, minima: Numbers | None = None, size: int = BLOCK
) -> float:
    """x . w in order 1; with scales, w are codes and there is a scale (and a minimum) for each `size`.

    16, 32, or a multiple of 32; 0: there is one scale for all.
    """
    acc = 0.0
    if size == 0:
        assert scales
        return f32(scales[0] * product(x, w))
    for number, first in enumerate(range(0, len(x), size)):
        part = x[first : first + size]
        total = group(part, w[first : first + size], size)
        acc = fma(scales[number], total, acc) if scales else f32(acc + total)
        if minima:
            acc = fma(minima[number], group(part, [1.0] * len(part), size), acc)
    return acc


# ---------------------------------------------------------------------------------------------------
# section 3: rows


def rms_norm(x: Numbers, gain: Numbers, eps: float) -> list[float]:
    mean = f32(product(x, x) / len(x))
    r = f32(1.0 / f32(math.sqrt(f32(mean + eps))))
    return [f32(f32(a * r) * g) for a, g in zip(x, gain, strict=True)]


def layer_norm(x: Numbers, gain: Numbers, bias: Numbers | None, eps: float) -> list[float]:
    mean = f32(product(x, [1.0] * len(x)) / len(x))
    apart = [f32(a - mean) for a in x]
    r = f32(1.0 / f32(math.sqrt(f32(f32(product(apart, apart) / len(x)) + eps))))
    y = [f32(f32(d * r) * g) for d, g in zip(apart, gain, strict=True)]
    return y if bias is None else [f32(a + b) for a, b in zip(y, bias, strict=True)]


def silu(g: float) -> float:
    return f32(g / f32(1.0 + exp(-g)))


def gelu_tanh(g: float) -> float:
    cubic = f32(f32(f32(g * g) * g) * literal("0.044715"))
    return f32(g / f32(1.0 + exp(f32(f32(g + cubic) * literal("-1.59576912")))))


def eight_bits(x: Numbers) -> tuple[list[float], list[int]]:
    """The scales of a row's groups, and its numbers."""
    scales, q = [], list[int]()
    for first in range(0, len(x), GROUP):
        part = [f32(a) for a in x[first : first + GROUP]]
        largest = max(map(abs, part))
        scales.append(f32(largest / 127.0))
        factor = f32(127.0 / largest) if scales[-1] and math.isfinite(largest) else 0.0
        q += [round(f32(a * factor)) if math.isfinite(a) else 0 for a in part]
    if all(map(math.isfinite, x)):
        return scales, q
    return [math.nan] * len(scales), [0] * len(x)


def product_of_8_bits(
    x: Numbers, w: Numbers, scales: Numbers, minima: Numbers | None = None, size: int = BLOCK
) -> float:
    """x . w with activations of 8 bits; w, scales, minima and size as those of product."""
    x_scales, q = eight_bits(x)
    total = 0.0
    for number, x_scale in enumerate(x_scales):
        acc, end = 0.0, min((number + 1) * GROUP, len(x))
        for first in range(number * GROUP, end, size or GROUP):
            own = range(first, min(first + (size or GROUP), end))
            exact = float(sum(int(w[k]) * q[k] for k in own))
            acc = fma(scales[first // size], exact, acc) if size else exact
            if minima:
                acc = fma(minima[first // size], float(sum(q[k] for k in own)), acc)
        total = fma(x_scale, acc, total)
    return total if size else f32(total * scales[0])


# ---------------------------------------------------------------------------------------------------
# section 5: exp, tanh, and their fp64 relatives

EXP_LOW, EXP_HIGH, MAGIC = literal("-87.33654"), literal("88.72283"), 12582912.0
EXP = [literal(c) for c in ("1.38888889e-3", "8.33333333e-3", "4.16666667e-2", "1.66666667e-1", "0.5", "1", "1")]
TANH = [
    literal(c)
    for c in ("-5.70498872745e-3", "2.06390887954e-2", "-5.37397155531e-2", "1.33314422036e-1", "-3.33332819422e-1")
]
MAGIC64 = 2.0**52 + 2.0**51
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")


def horner(coefficients: Numbers, r: float) -> float:
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fma(p, r, c)
    return p


def exp(x: float) -> float:
    if x != x or x < EXP_LOW or x > EXP_HIGH:
        return x if x != x else 0.0 if x < EXP_LOW else INF
    n = f32(fma(x, literal("1.44269504"), MAGIC) - MAGIC)
    r = fma(n, literal("-1.42860677e-6"), fma(n, literal("-0.693145752"), x))
    p, half = horner(EXP, r), int(n) // 2
    return f32(f32(p * 2.0**half) * 2.0 ** (int(n) - half))


def tanh(x: float) -> float:
    if x != x:
        return x
    size, square = abs(x), f32(x * x)
    if size < 0.625:
        return fma(f32(horner(TANH, square) * square), x, x)
    high = f32(1.0 - f32(2.0 / f32(exp(f32(size + size)) + 1.0)))
    return -high if x < 0 else high


def exp_double(x: float) -> float:
    if x < -700.0:
        return 0.0
    n = (x * float.fromhex("0x1.71547652b82fep+0") + MAGIC64) - MAGIC64
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = 1.0 / 6227020800.0
    for divisor in (479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1):
        p = p * r + 1.0 / divisor
    return math.ldexp(p, int(n))


def log_double(x: float) -> float:
    m, e = math.frexp(x)  # x = 2^e m, m in [1/2, 1)
    if m < math.sqrt(0.5):
        m, e = m * 2, e - 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 1.0 / 21.0
    for divisor in (19, 17, 15, 13, 11, 9, 7, 5, 3):
        p = p * z + 1.0 / divisor
    s += s
    return e * LN2_HIGH + (s + (s * z * p + e * LN2_LOW))


# ---------------------------------------------------------------------------------------------------
# section 6: rotary positions

HALF_PI = [float.fromhex(part) for part in ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110")]


def sine_cosine(x: float) -> tuple[float, float]:
    q = fma64(x, float.fromhex("0x1.45f306dc9c883p-1"), MAGIC64) - MAGIC64
    r = x
    for part in HALF_PI:
        r = fma64(-q, part, r)
    square = r * r
    s = (-1) ** 8 / math.factorial(17)
    for k in range(7, 0, -1):
        s = fma64(s, square, (-1) ** k / math.factorial(2 * k + 1))
    c = (-1) ** 9 / math.factorial(18)
    for k in range(8, 0, -1):
        c = fma64(c, square, (-1) ** k / math.factorial(2 * k))
    s, c = fma64(s * square, r, r), fma64(c, square, 1.0)
    return [(s, c), (c, -s), (-s, -c), (-c, s)][int(q) % 4]


def angle(position: int, frequency: float, factor: float) -> tuple[float, float]:
    """cos and sin in fp32."""
    sine, cosine = sine_cosine(position * frequency)
    return f32(cosine * factor), f32(sine * factor)


def rotate(x1: float, x2: float, cos: float, sin: float) -> tuple[float, float]:
    return f32(f32(x1 * cos) - f32(x2 * sin)), f32(f32(x2 * cos) + f32(x1 * sin))


# ---------------------------------------------------------------------------------------------------
# section 7: attention

State = tuple[float, float, list[float]]  # m, l, O


def tile(state: State, scores: Numbers, values: Sequence[Numbers], *, rounded: bool) -> State:
    """One tile's first columns, the others being hidden; `values` [columns][value dim].

    Columns before those that the row sees have the score -inf and the value 0.
    """
    before, total, sums = state
    m = max(before, *scores)
    alpha = exp(f32(before - m))
    p = [exp(f32(s - m)) for s in scores]
    p = [bf16(weight) for weight in p] if rounded else p
    total, sums = f32(total * alpha), [f32(o * alpha) for o in sums]
    for first in (0, BLOCK):
        part = p[first : first + BLOCK]
        seen = values[first : first + BLOCK]
        total = f32(total + block(part, [1.0] * len(part)))
        sums = [f32(o + block(part, [v[d] for v in seen])) for d, o in enumerate(sums)]
    return m, total, sums


def capped(x: float, softcap: float) -> float:
    return f32(softcap * tanh(f32(x / softcap))) if softcap else x


def score(q: Numbers, k: Numbers, scale: float, softcap: float) -> float:
    return capped(f32(product(q, k) * scale), softcap)


def merge(first: State, later: State) -> State:
    if later[0] == -INF or first[0] == -INF:
        return first if later[0] == -INF else later
    m = max(first[0], later[0])
    a, b = exp(f32(first[0] - m)), exp(f32(later[0] - m))
    sums = [fma(o2, b, f32(o1 * a)) for o1, o2 in zip(first[2], later[2], strict=True)]
    return m, fma(later[1], b, f32(first[1] * a)), sums


# ---------------------------------------------------------------------------------------------------
# section 8: logits and the draw


def statistics(chunk: Numbers) -> tuple[float, int, float]:
    """Largest logit, the first place that holds it, sum of exp(x - max)."""
    top = max(chunk)
    lanes = [0.0] * LANES
    for i, x in enumerate(chunk):
        lanes[i % LANES] = f32(lanes[i % LANES] + exp(f32(x - top)))
    for half in (8, 4, 2, 1):
        for j in range(half):
            lanes[j] = f32(lanes[j] + lanes[j + half])
    return top, list(chunk).index(top), lanes[0]


def logsumexp(logits: Numbers) -> float:
    top, total = -INF, 0.0
    for first in range(0, len(logits), VOCAB_CHUNK):
        chunk = logits[first : first + VOCAB_CHUNK]
        if max(chunk) == -INF:
            continue
        m, _, s = statistics(chunk)
        both = max(top, m)
        total = s if top == -INF else fma64(s, exp_double(m - both), total * exp_double(top - both))
        top = both
    return top + log_double(total)


def logprob(logits: Numbers, token: int) -> float:
    return f32(logits[token] - logsumexp(logits))


def edited(logits: Numbers, edits: Sequence[tuple[int, float, int, int]], wish: dict[str, float]) -> list[float]:
    """The row that is drawn from; each edit is (token, bias, count, flags: 1 seen, 2 allowed)."""
    only_allowed = int(wish["flags"]) & 1
    row = [-INF] * len(logits) if only_allowed else list(logits)
    for token, bias, count, flags in edits:
        if only_allowed and not flags & 2:
            continue
        x = f32(logits[token] + bias)
        if flags & 1:
            x = f32(x * wish["repetition"]) if x < 0 else f32(x / wish["repetition"])
        x = f32(x - f32(wish["frequency"] * f32(count)))
        if count > 0:
            x = f32(x - wish["presence"])
        row[token] = -INF if x != x else x
    return row


def noise_words(seed: int, place: int, child: int, quarter: int) -> list[int]:
    """Philox4x32-10: the words of tokens 4 * quarter .. + 3."""
    a, b, c, d = place, quarter, child, 0
    low, high = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ low, second & 0xFFFFFFFF, first >> 32 ^ d ^ high, first & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def gumbel(word: int) -> float:
    u = (word + 0.5) * 2.0**-32
    return -log_double(-log_double(1.0 - u))


def kept(x: Numbers, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The tokens that may be drawn, of scaled logits; ascending ids."""
    top = max(x)
    lowest = top + log_double(min_p) if min_p > 0 else -INF
    if 0 < top_k < len(x):
        lowest = max(lowest, sorted(x, reverse=True)[top_k - 1])
    ids = [i for i, value in enumerate(x) if (value >= lowest or value == top) and value != -INF]
    if top_p >= 1.0:
        return ids
    mass = {i: round(Fraction(exp_double(x[i] - top)) * 2**44) for i in ids}
    needed = max(1, math.ceil(top_p * float(sum(mass.values()))))
    chosen, reached = [], 0
    for i in sorted(ids, key=lambda i: (-x[i], i)):
        if reached >= needed:
            break
        chosen.append(i)
        reached += mass[i]
    return sorted(chosen)


def choose(logits: Numbers, wish: dict[str, float]) -> int:
    """The token; `wish` has the fields of a sampling record, numbers in fp32."""
    greedy = list(logits).index(max(logits))
    temperature = wish["temperature"]
    if temperature < literal("1e-5") or not math.isfinite(f32(max(logits) / temperature)):
        return greedy
    x = [f32(value / temperature) for value in logits]
    ids = kept(x, int(wish["top_k"]), wish["top_p"], wish["min_p"])
    seed, place, child = (int(wish[name]) for name in ("seed", "place", "child"))
    scores = {i: x[i] + gumbel(noise_words(seed, place, child, i // 4)[i % 4]) for i in ids}
    return min(scores, key=lambda i: (-scores[i], i))
