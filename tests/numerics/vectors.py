"""The kinds of vectors, each computed in two ways: by the kernels, and by the page (order1.py).

What it is not: a test. Invariant: inputs are drawn once, by inputs.py; whoever checks a vector reads its input from the
file.
"""

import math
from collections.abc import Callable
from functools import cache

from tests.numerics import by_kernel, order1
from tests.numerics.cases import Case, logits_of, ruled


def _nested_scales(case: Case) -> tuple[list[float], list[float]]:
    """And minima."""
    scales, minima = (
        [case[part] * factor for factor in case.get(f"{part}_factors", ())] for part in ("scale", "minimum")
    )
    return scales, minima


def _nested_product(case: Case) -> float:
    scales, minima = _nested_scales(case)
    return order1.product(case["x"], case["w"], scales, minima, 256 // len(scales))


def _int8_product(case: Case) -> float:
    if "scale_factors" in case:
        scales, minima = _nested_scales(case)
        return order1.product_of_8_bits(case["x"], case["w"], scales, minima, 256 // len(scales))
    size = 0 if case["form"] == "i8c" else len(case["x"]) // len(case["scales"])
    return order1.product_of_8_bits(case["x"], case["w"], case["scales"], case.get("minima"), size)


def _attention(case: Case) -> Case:
    rounded = case["form"] == "bf16"
    q = [order1.bf16(x) for x in case["q"]] if rounded else case["q"]
    scale = order1.f32(len(q) ** -0.5)
    index, width = len(case["k"]) - 1, len(case["v"][0])
    lowest = max(0, index - case["window"] + 1) if "window" in case else 0
    scores, values = [-math.inf] * lowest, [[0.0] * width] * lowest + case["v"][lowest:]
    for j, k in enumerate(case["k"][lowest:], lowest):
        s = order1.score(q, k, scale, case["softcap"])
        scores.append(order1.fma(case["slope"], float(j - index), s) if "slope" in case else s)
    m, total, sums = -math.inf, 0.0, [0.0] * width
    for start in range(lowest // order1.TILE * order1.TILE, index + 1, order1.TILE):
        of_tile = slice(start, start + order1.TILE)
        m, total, sums = order1.tile((m, total, sums), scores[of_tile], values[of_tile], rounded=rounded)
    return {"m": m, "l": total, "y": [order1.f32(o / total) for o in sums]}


def _rms_norm(case: Case) -> list[float]:
    size = len(case["gain"])
    parts = [case["x"][at : at + size] for at in range(0, len(case["x"]), size)]
    return [y for part in parts for y in order1.rms_norm(part, case["gain"], case["eps"])]


def _logits(case: Case) -> list[float]:
    return [order1.capped(order1.f32(x * case["scale"]), case["softcap"]) for x in case["x"]]


def _merge(case: Case) -> list[float]:
    first, later = ((s[0], s[1], s[2:]) for s in (case["first"], case["later"]))
    m, total, sums = order1.merge(first, later)
    return [m, total, *sums]


def _statistics(case: Case) -> Case:
    top, place, total = order1.statistics(logits_of(case))
    return {"max": top, "argmax": place, "sum": total}


@cache
def _ruled_logsumexp(count: int) -> float:
    return order1.logsumexp(ruled(count))


def _choice(case: Case) -> Case:
    logits = logits_of(case)
    token = order1.choose(logits, case["wish"])
    lse = _ruled_logsumexp(case["count"]) if "count" in case else order1.logsumexp(logits)
    return {"token": token, "logprob": order1.f32(logits[token] - lse)}


def _each(function: Callable[[float], float]) -> Callable[[Case], list[float]]:
    return lambda case: [function(x) for x in case["x"]]


def _angles(case: Case) -> list[list[float]]:
    pairs = [order1.angle(case["position"], frequency, case["factor"]) for frequency in case["frequencies"]]
    return [[cos for cos, _ in pairs], [sin for _, sin in pairs]]


# kind -> (by a kernel, by the page)
KINDS: dict[str, tuple[Callable[[by_kernel.Isa, Case], object], Callable[[Case], object]]] = {
    "bf16": (by_kernel.bf16, _each(order1.bf16)),
    "exp": (by_kernel.exp, _each(order1.exp)),
    "tanh": (by_kernel.tanh, _each(order1.tanh)),
    "exp_double": (by_kernel.exp_double, _each(order1.exp_double)),
    "log_double": (by_kernel.log_double, _each(order1.log_double)),
    "product": (by_kernel.product, lambda c: order1.product(c["x"], c["w"], c.get("scales"), c.get("minima"))),
    "nested_product": (by_kernel.nested_product, _nested_product),
    "int8_product": (by_kernel.int8_product, _int8_product),
    "rms_norm": (by_kernel.rms_norm, _rms_norm),
    "layer_norm": (by_kernel.layer_norm, lambda c: order1.layer_norm(c["x"], c["gain"], c.get("bias"), c["eps"])),
    "silu": (by_kernel.silu, _each(order1.silu)),
    "gelu_tanh": (by_kernel.gelu_tanh, _each(order1.gelu_tanh)),
    "angles": (by_kernel.angles, _angles),
    "rotation": (by_kernel.rotation, lambda c: list(order1.rotate(c["x1"], c["x2"], c["cos"], c["sin"]))),
    "attention": (by_kernel.attention, _attention),
    "merge": (by_kernel.merge, _merge),
    "logits": (by_kernel.logits, _logits),
    "statistics": (by_kernel.statistics, _statistics),
    "edited": (by_kernel.edited, lambda c: order1.edited(c["logits"], c["edits"], c["wish"])),
    "philox": (by_kernel.philox, lambda c: order1.noise_words(c["seed"], c["place"], c["child"], c["token"] // 4)),
    "gumbel": (by_kernel.gumbel, lambda c: [order1.gumbel(word) for word in c["words"]]),
    "choice": (by_kernel.choice, _choice),
}
