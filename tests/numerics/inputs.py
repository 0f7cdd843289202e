"""The inputs of the vectors: corners of each function, and seeded random numbers between them."""

import math

import numpy as np
from tests.numerics.cases import Case

INF = math.inf
NOTHING = [-INF, 0.0, 0.0]  # the state of a chunk that a row sees nothing of


def _normal(rng: np.random.Generator, *shape: int) -> list[float]:
    made: list[float] = rng.standard_normal(shape).astype(np.float32).tolist()
    return made


def _coarse(rng: np.random.Generator, *shape: int) -> list[float]:
    """Numbers that bf16 and fp16 hold."""
    made: list[float] = np.ldexp(rng.integers(-127, 128, shape), -6).astype(np.float64).tolist()
    return made


def _single(*numbers: float) -> list[float]:
    made: list[float] = np.array(numbers, np.float32).tolist()
    return made


def _products(rng: np.random.Generator) -> list[Case]:
    dense: list[Case] = [{"form": "f32", "x": _normal(rng, n), "w": _normal(rng, n)} for n in (1, 2, 31, 32, 33, 65)]
    dense += [{"form": form, "x": _normal(rng, 35), "w": _coarse(rng, 35)} for form in ("bf16", "f16")]
    coded: list[Case] = []
    for form, low, high in (("q8", -127, 128), ("q4", -8, 8), ("q4m", 0, 16)):
        codes, halves = rng.integers(low, high, 64).tolist(), (rng.integers(900, 1100, (2, 2)) / 2**14).tolist()
        case = {"form": form, "x": _coarse(rng, 64), "w": codes, "scales": halves[0]}
        coded.append({**case, "minima": [-m for m in halves[1]]} if form == "q4m" else case)
    return dense + coded


def _nested(rng: np.random.Generator) -> list[Case]:
    """Blocks of 256 whose scales are integers times a half: one for each 32 or 16 codes, with minima and without."""
    made: list[Case] = []
    for form, groups, codes, factors, minima in (
        ("q4km", 8, (0, 16), (0, 64), 64), ("q6kh", 16, (-32, 32), (-128, 128), 0), ("q2khm", 16, (0, 4), (0, 16), 16),
    ):  # fmt: skip
        halves = (rng.integers(900, 1100, 2) / 2**16).tolist()
        case: Case = {"form": form, "x": _coarse(rng, 256), "w": rng.integers(*codes, 256).tolist()}
        case |= {"scale": halves[0], "scale_factors": rng.integers(*factors, groups).tolist()}
        if minima:
            case |= {"minimum": -halves[1], "minimum_factors": rng.integers(0, minima, groups).tolist()}
        made.append(case)
    return made


def _int8_products(rng: np.random.Generator) -> list[Case]:
    """Rows of two groups, the second shorter: scales of 16, 32, 64 codes and of a row; a group of zeros, one that is
    too small to count, numbers that are not finite.
    """
    made: list[Case] = []
    for form, low, high, cols, groups in (
        ("q8", -127, 128, 160, 5), ("q4", -8, 8, 224, 7), ("q4m", 0, 16, 160, 5), ("q8s2", -127, 128, 192, 3),
        ("i8c", -127, 128, 150, 1),
    ):  # fmt: skip
        case: Case = {"form": form, "x": _normal(rng, cols), "w": rng.integers(low, high, cols).tolist()}
        case["scales"] = (rng.integers(900, 1100, groups) / 2**14).tolist()
        if form == "q4m":
            case["minima"] = (-rng.integers(900, 1100, groups) / 2**11).tolist()
        made.append(case)
    plain = made[0]
    first, second = plain["x"][:128], plain["x"][128:]
    made += [{**case, "x": _normal(rng, 256)} for case in _nested(rng)]
    changed = ([0.0] * 128 + second, _single(*(1e-38 * x for x in first), *second), [*first, math.nan, *second[1:]])
    return made + [{**plain, "x": x} for x in (*changed, [-INF, *first[1:], *second])]


def _attention(rng: np.random.Generator) -> list[Case]:
    """A tile seen in both of its halves, head sizes that are no whole blocks, a soft-cap."""
    made: list[Case] = []
    for form, tokens, key_dim, value_dim, softcap in (
        ("bf16", 40, 6, 4, 0.0), ("fp32", 5, 34, 6, 0.0), ("fp32", 3, 2, 2, 2.5),
    ):  # fmt: skip
        draw = _coarse if form == "bf16" else _normal
        k, v = draw(rng, tokens, key_dim), draw(rng, tokens, value_dim)
        made.append({"form": form, "softcap": softcap, "q": _normal(rng, key_dim), "k": k, "v": v})
    return made


def _later_attention(rng: np.random.Generator) -> list[Case]:
    """A window that ends inside a block, one that leaves nothing of a tile, a bias by distance; all of it at once."""
    made: list[Case] = []
    for form, tokens, softcap, more in (
        ("bf16", 40, 0.0, {"window": 13}), ("fp32", 70, 0.0, {"window": 6}), ("bf16", 9, 0.0, {"slope": 2.0**-3}),
        ("fp32", 67, 3.0, {"window": 20, "slope": _as_stored(0.7)}),
    ):  # fmt: skip
        draw = _coarse if form == "bf16" else _normal
        k, v, q = draw(rng, tokens, 4), draw(rng, tokens, 2), _normal(rng, 4)
        made.append({"form": form, "softcap": softcap, **more, "q": q, "k": k, "v": v})
    return made


def _norms(rng: np.random.Generator) -> dict[str, list[Case]]:
    def case(eps: float, **sizes: int) -> Case:
        return {"eps": _as_stored(eps), **{name: _normal(rng, size) for name, size in sizes.items()}}

    return {
        "rms_norm": [case(1e-6, x=21, gain=7)],
        "layer_norm": [case(1e-5, x=35, gain=35, bias=35), case(0.5, x=3, gain=3), case(1e-5, x=31, gain=31, bias=31)],
    }


def _choices() -> list[Case]:
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 2**40 + 7, "place": 3, "child": 0}
    # The places are such that each filter changes what is drawn.
    wishes = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "place": 4, "child": 1},
        {"temperature": 1.5, "top_k": 40, "place": 1},
        {"temperature": 1.0, "top_p": 0.9, "place": 2},
        {"temperature": 2.0, "min_p": 0.05, "place": 30},
        {"temperature": 1.3, "top_k": 700, "top_p": 0.95, "min_p": 0.001, "seed": 2**64 - 1, "place": 0},
    ]
    rounded = [{name: _as_stored(value) for name, value in {**off, **wish}.items()} for wish in wishes]
    made: list[Case] = [{"count": 9000, "wish": wish} for wish in rounded]
    few = {"logits": _single(1.5, -INF, 2.0, 2.0, -3.0, 0.25, 2.0)}
    made += [{**few, "wish": wish} for wish in rounded[:3]]
    # Ties at the border of top-p stay by the lower id; out of fp32's range after scaling, the choice is greedy.
    made.append({**few, "wish": {**rounded[1], "top_p": 0.5}})
    made.append({"logits": _single(1e30, 3e38, 2e38), "wish": {**rounded[1], "temperature": _as_stored(1e-5)}})
    return made


def _edits(rng: np.random.Generator) -> list[Case]:
    """Each operation alone, all at once (their order shows in the last bits), allowed tokens, infinities on the way."""
    off = {"repetition": 1.0, "frequency": 0.0, "presence": 0.0, "flags": 0}
    penalties = {"repetition": _as_stored(1.3), "frequency": _as_stored(0.7), "presence": _as_stored(0.1)}
    logits = _single(*(4 * x for x in _normal(rng, 12)), -INF, 0.0, -0.0, 1e38)
    every = [
        [token, bias, int(rng.integers(0, 6)), int(rng.integers(0, 4))]
        for token, bias in enumerate(_single(*_normal(rng, 14), 0.0, 3e38))
    ]
    plain: list[list[float]] = [[token, 0.0, 2, 1] for token in range(len(logits))]
    made: list[Case] = [{"edits": plain, "wish": {**off, name: value}} for name, value in penalties.items()]
    made.append({"edits": [[3, _single(-2.5)[0], 0, 0], [7, -INF, 3, 1]], "wish": off})
    made.append({"edits": every, "wish": {**off, **penalties}})
    made.append({"edits": every[::-1], "wish": {**off, **penalties, "flags": 1}})
    made.append({"edits": plain, "wish": {**off, "frequency": -_single(3e38)[0], "repetition": _as_stored(1e-30)}})
    return [{"logits": logits, **case} for case in made]


def _as_stored(value: float) -> float:
    return float(np.float32(value)) if isinstance(value, float) else value


def inputs() -> dict[str, list[Case]]:
    """By kind, each list in the order of the file."""
    rng = np.random.default_rng(1)
    exps = (0, -0.0, 1, -1, 0.5, 1e-8, -1e-8, 88.7, 88.72283, 88.8, -87.3, -87.33654, -87.4, INF, -INF, 20.25, -45.5)
    tanhs = (0, -0.0, 1e-6, 0.3, -0.5, 0.6249999, 0.625, -0.625, 1, -2.5, 8.7, 44.0, 50, -INF)
    gates = (0, -0.0, 1, -1, 0.01, 3.75, -3.75, 12, -12, 90, -90, -200, 1e20)
    halfway = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 3.3e38, 3.4e38]
    words = [0, 1, 2**31, 2**31 - 1, 2**32 - 1, *rng.integers(0, 2**32, 8).tolist()]
    frequencies = [1.0, 10000.0**-0.25, 10000.0**-0.75, 500000.0**-0.9]
    later = np.random.default_rng(3)
    norms = _norms(later)
    return {
        "bf16": [{"x": _single(0, -0.0, *halfway, INF, *_normal(rng, 6))}],
        "exp": [{"x": _single(*exps, *(8 * x for x in _normal(rng, 12)))}],
        "tanh": [{"x": _single(*tanhs, *_normal(rng, 10))}],
        "exp_double": [{"x": [0.0, 1.0, -1.0, -31.25, -699.9, -700.5, *(-20 * rng.random(8)).tolist()]}],
        "log_double": [{"x": [1.0, 0.5, 2.0, 2.0**-33, 1 - 2.0**-33, 0.7, 0.71, *(5000 * rng.random(8)).tolist()]}],
        "product": _products(rng),
        "nested_product": _nested(np.random.default_rng(4)),
        "int8_product": _int8_products(np.random.default_rng(5)),
        "rms_norm": [
            {"eps": _as_stored(eps), "x": _normal(rng, n), "gain": _normal(rng, n)} for n, eps in ((35, 1e-5), (3, 0.5))
        ]
        + norms["rms_norm"],
        "layer_norm": norms["layer_norm"],
        "silu": [{"x": _single(*gates, *_normal(rng, 6))}],
        "gelu_tanh": [{"x": _single(*gates, *_normal(rng, 6))}],
        "angles": [
            {"position": position, "factor": factor, "frequencies": frequencies}
            for position, factor in ((0, 1.0), (1, 1.0), (355, 1.0), (8191, 1.0), (103993, 1.0), (77, 1.25))
        ],
        "rotation": [dict(zip(("x1", "x2", "cos", "sin"), _normal(rng, 4), strict=True)) for _ in range(3)],
        "attention": _attention(rng) + _later_attention(later),
        "merge": [
            {"first": _single(1.25, 3.5, *_normal(rng, 3)), "later": _single(later, 7.125, *_normal(rng, 3))}
            for later in (0.5, 2.75, -100.0)
        ]
        + [{"first": NOTHING, "later": [1.0, 2.0, 3.0]}, {"first": [1.0, 2.0, 3.0], "later": NOTHING}],
        "logits": [
            {"scale": scale, "softcap": softcap, "x": _single(*tanhs[:-1], *(40 * x for x in _normal(later, 6)))}
            for scale, softcap in ((0.0625, 0.0), (1.0, 30.0), (_as_stored(0.3), 2.5))
        ],
        "statistics": [
            {"logits": _single(-INF, *_normal(rng, 15), 2.75, 2.75, *_normal(rng, 3))},
            {"count": 333},
            {"count": 4096},
        ],
        "edited": _edits(np.random.default_rng(2)),
        "philox": [
            {"seed": seed, "place": place, "child": child, "token": token}
            for seed, place, child, token in (
                (0, 0, 0, 0), (1, 0, 0, 0), (2**40 + 7, 3, 0, 48), (2**64 - 1, 2**32 - 1, 5, 49148),
            )
        ],
        "gumbel": [{"words": words}],
        "choice": _choices(),
    }  # fmt: skip
