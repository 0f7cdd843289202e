"""Every op kind on every backend, in fp32, against its formula in fp64. A kind without a case here fails.

A backend must run a kind's first case; it may refuse others, and then compiling fails with that reason.
"""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from registry_entries import entries
from tests.program import expected
from tests.program.one_op import TOKENS, Bench, Numbers, result

from pelton.backends import BACKENDS
from pelton.backends.backend import CompileOptions
from pelton.core.errors import BackendError
from pelton.program import OPS
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.op import Attr
from pelton.program.states import KVSpec
from pelton.program.values import Value

Case = tuple[Module, Numbers]
FREQUENCIES = 10000.0 ** -(np.arange(8) / 8)
EPS = 1e-3
TOLERANCE = 1e-5  # of the result's standard deviation; fp32 has 6e-8


def embed(form: str = "F32", scale: float = 1.5) -> Case:
    bench, cols = Bench(), -(-96 // FORMATS[form].block) * FORMATS[form].block
    name, numbers = bench.tensor((40, cols), form)
    table = bench.builder.gather(name, 40, cols)
    (value,) = bench.builder.op("embed", (bench.ids,), ("x",), weights=(table,), attrs={"scale": scale})
    return bench.seen(value, cols), numbers[TOKENS] * scale


def rms_norm() -> Case:
    bench = Bench()
    (x, numbers), (gain, gains) = bench.rows(100), bench.vector(100)
    (value,) = bench.builder.op("rms_norm", (x,), ("y",), weights=(gain,), attrs={"eps": EPS})
    return bench.seen(value, 100), expected.rms_norm(numbers, gains, EPS)


def rms_norm_of_heads(heads: int = 5) -> Case:
    bench = Bench()
    (x, numbers), (gain, gains) = bench.rows(heads * 18), bench.vector(18)
    attrs: dict[str, Attr] = {"eps": EPS, "heads": heads}
    (value,) = bench.builder.op("rms_norm", (x,), ("y",), weights=(gain,), attrs=attrs)
    return bench.seen(value, heads * 18), expected.rms_norm_of_heads(numbers, gains, EPS, heads)


def plus_one() -> Case:
    """Gains that the file holds less one."""
    bench = Bench()
    (x, numbers), (name, gains) = bench.rows(36), bench.tensor((36,))
    gain = bench.builder.vector(name, 36, plus=1.0)
    (value,) = bench.builder.op("rms_norm", (x,), ("y",), weights=(gain,), attrs={"eps": EPS})
    return bench.seen(value, 36), expected.rms_norm(numbers, gains + 1, EPS)


def layer_norm(*, biased: bool = True, centre: float = 0.0) -> Case:
    """`centre`: a number added to all of the rows, which leaves fewer digits of what is apart from it."""
    bench = Bench()
    (x, numbers), (gain, gains) = bench.rows(100), bench.vector(100)
    if centre:
        offset = bench.builder.vector(bench.tensor_of(np.full(100, centre)), 100)
        identity = bench.builder.matrix(bench.tensor_of(np.eye(100)), 100, 100)
        attrs: dict[str, Attr] = {"biases": (offset,)}
        (x,) = bench.builder.op("linear", (x,), ("moved",), weights=(identity,), attrs=attrs)
    bias, biases = bench.vector(100) if biased else ("", np.zeros(100))
    weights = (gain, bias) if biased else (gain,)
    (value,) = bench.builder.op("layer_norm", (x,), ("y",), weights=weights, attrs={"eps": EPS})
    return bench.seen(value, 100), expected.layer_norm(numbers + centre, gains, biases, EPS)


def linear(form: str = "F32", rows: int = 70) -> Case:
    bench, cols = Bench(), -(-96 // FORMATS[form].block) * FORMATS[form].block
    (x, numbers), (matrix, weights) = bench.rows(cols), bench.matrix(rows, cols, form)
    (value,) = bench.builder.op("linear", (x,), ("y",), weights=(matrix,))
    return bench.seen(value, rows), numbers @ weights.T


def linear_biased() -> Case:
    bench = Bench()
    (x, numbers), (matrix, weights), (bias, biases) = bench.rows(50), bench.matrix(33, 50), bench.vector(33)
    (value,) = bench.builder.op("linear", (x,), ("y",), weights=(matrix,), attrs={"biases": (bias,)})
    return bench.seen(value, 33), numbers @ weights.T + biases


def linear_several() -> Case:
    """Two matrices over one normed input; their outputs meet again in an addition."""
    bench = Bench()
    (x, numbers), (gain, gains), (bias, biases) = bench.rows(64), bench.vector(64), bench.vector(48)
    (one, first), (two, second) = bench.matrix(48, 64), bench.matrix(48, 64)
    attrs: dict[str, Attr] = {"gain": gain, "eps": EPS, "biases": ("", bias)}
    outputs = bench.builder.op("linear", (x,), ("a", "b"), weights=(one, two), attrs=attrs)
    (value,) = bench.builder.op("add", outputs, ("y",))
    normed = expected.rms_norm(numbers, gains, EPS)
    return bench.seen(value, 48), normed @ first.T + normed @ second.T + biases


def linear_mixed(*forms: str) -> Case:
    """Matrices of different formats over one input, whose rows are made ready for all of them."""
    bench = Bench()
    x, numbers = bench.rows(256)
    matrices = [bench.matrix(48, 256, form) for form in forms]
    names = tuple(f"part{i}" for i in range(len(forms)))
    value, *others = bench.builder.op("linear", (x,), names, weights=tuple(name for name, _ in matrices))
    for other in others:
        (value,) = bench.builder.op("add", (value, other), (f"{other}.sum",))
    return bench.seen(value, 48), sum(numbers @ weights.T for _, weights in matrices)


def linear_fused(activation: str = "silu", form: str = "F32") -> Case:
    """Everything at once: norm, two matrices with biases, activation, residual."""
    bench = Bench()
    (x, numbers), (residual, rest), (gain, gains) = bench.rows(64), bench.rows(48), bench.vector(64)
    (one, first), (two, second) = bench.matrix(48, 64, form), bench.matrix(48, 64, form)
    (bias_one, biases_one), (bias_two, biases_two) = bench.vector(48), bench.vector(48)
    attrs: dict[str, Attr] = {"gain": gain, "eps": EPS, "biases": (bias_one, bias_two), "activation": activation}
    (value,) = bench.builder.op("linear", (x, residual), ("y",), weights=(one, two), attrs=attrs)
    normed = expected.rms_norm(numbers, gains, EPS)
    act = {"silu": expected.silu, "gelu_tanh": expected.gelu_tanh}[activation]
    return bench.seen(value, 48), act(normed @ first.T + biases_one) * (normed @ second.T + biases_two) + rest


def gated(activation: str = "silu") -> Case:
    bench = Bench()
    (gate, gates), (up, ups) = bench.rows(70), bench.rows(70)
    (value,) = bench.builder.op("gated", (gate, up), ("y",), attrs={"activation": activation})
    act = {"silu": expected.silu, "gelu_tanh": expected.gelu_tanh}[activation]
    return bench.seen(value, 70), act(gates) * ups


def activate(activation: str = "silu") -> Case:
    bench = Bench()
    x, numbers = bench.rows(70)
    (value,) = bench.builder.op("activate", (x,), ("y",), attrs={"activation": activation})
    return bench.seen(value, 70), {"silu": expected.silu, "gelu_tanh": expected.gelu_tanh}[activation](numbers)


def add() -> Case:
    bench = Bench()
    (x, numbers), (residual, rest) = bench.rows(70), bench.rows(70)
    (value,) = bench.builder.op("add", (x, residual), ("y",))
    return bench.seen(value, 70), numbers + rest


def _table(bench: Bench, factor: float = 1.0) -> str:
    attrs: dict[str, Attr] = {"inverse_frequencies": tuple(FREQUENCIES.tolist()), "factor": factor}
    return bench.builder.op("rope_table", (bench.positions,), ("cs",), attrs=attrs)[0]


def rope_table() -> Case:
    bench = Bench()
    angles = np.arange(len(TOKENS))[:, None] * FREQUENCIES
    return bench.seen(_table(bench, 1.25), 16), 1.25 * np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)


def rope(dim: int = 16, *, interleaved: bool = False) -> Case:
    bench = Bench()
    x, numbers = bench.rows(3 * dim)
    attrs: dict[str, Attr] = {"heads": 3, "interleaved": interleaved}
    (value,) = bench.builder.op("rope", (x, _table(bench)), ("y",), attrs=attrs)
    return bench.seen(value, 3 * dim), expected.rope(numbers, FREQUENCIES, 3, interleaved=interleaved)


def attend(
    heads: int = 4,
    kv_heads: int = 2,
    window: int | None = None,
    softcap: float = 0.0,
    slopes: tuple[float, ...] = (),
) -> Case:
    """kv_write and attend: one cannot be seen without the other. Layer 1 of 2, the other holds something else."""
    bench = Bench()
    (q, queries), (k, keys), (v, values) = bench.rows(heads * 16), bench.rows(kv_heads * 16), bench.rows(kv_heads * 16)
    spec = KVSpec(kv_heads, 16, 16, window)
    attrs: dict[str, Attr] = {"heads": heads, "scale": 0.3, "softcap": softcap, "slopes": slopes}
    for layer, inputs in enumerate([(v, k), (k, v)]):
        assert bench.builder.state(spec) == ("kv0", layer)
        bench.builder.op("kv_write", inputs, state="kv0", attrs={"layer": layer})
    (value,) = bench.builder.op("attend", (q,), ("y",), state="kv0", attrs={**attrs, "layer": 1})
    out = expected.attention(queries, keys, values, kv_heads, 0.3, window=window, softcap=softcap, slopes=slopes)
    return bench.seen(value, heads * 16), out


def rope_kv(dim: int = 16, *, interleaved: bool = False) -> Case:
    """With heads wider than the table the numbers behind it pass through."""
    bench = Bench()
    (q, queries), (k, keys), (v, values) = bench.rows(4 * dim), bench.rows(2 * dim), bench.rows(2 * dim)
    bench.builder.state(KVSpec(2, dim, dim))
    attrs: dict[str, Attr] = {"layer": 0, "heads": 4, "kv_heads": 2, "interleaved": interleaved}
    (q,) = bench.builder.op("rope_kv", (q, k, v, _table(bench)), ("q",), state="kv0", attrs=attrs)
    attrs = {"layer": 0, "heads": 4, "scale": 0.25, "softcap": 0.0}
    (value,) = bench.builder.op("attend", (q,), ("y",), state="kv0", attrs=attrs)
    queries, keys = (
        expected.rope(x, FREQUENCIES, heads, interleaved=interleaved) for x, heads in ((queries, 4), (keys, 2))
    )
    return bench.seen(value, 4 * dim), expected.attention(queries, keys, values, 2, 0.25)


def head(scale: float = 1.0, softcap: float = 0.0, *, normed: bool = True) -> Case:
    bench = Bench()
    (x, numbers), (matrix, weights) = bench.rows(64), bench.matrix(130, 64)
    attrs: dict[str, Attr] = {"scale": scale, "softcap": softcap}
    if normed:
        gain, gains = bench.vector(64)
        attrs |= {"gain": gain, "eps": EPS}
        numbers = expected.rms_norm(numbers, gains, EPS)
    bench.builder.op("head", (x,), weights=(matrix,), attrs=attrs)
    logits = numbers @ weights.T * scale
    return bench.finished(130), softcap * np.tanh(logits / softcap) if softcap else logits


CASES: dict[str, list[Callable[[], Case]]] = {
    "embed": [embed, *(lambda form=form: embed(form, 1.0) for form in FORMATS)],  # type: ignore[misc]
    "rms_norm": [rms_norm, rms_norm_of_heads, lambda: rms_norm_of_heads(1), plus_one],
    "layer_norm": [layer_norm, lambda: layer_norm(biased=False), lambda: layer_norm(centre=2.0)],
    "linear": [
        *(lambda form=form: linear(form) for form in FORMATS),  # type: ignore[misc]
        lambda: linear(rows=1),
        linear_biased,
        linear_several,
        lambda: linear_mixed("Q4_K", "Q2_K"),
        lambda: linear_mixed("F32", "Q5_1", "Q2_K", "Q8_0"),
        linear_fused,
        lambda: linear_fused("gelu_tanh", "Q4_1"),
    ],
    "gated": [gated, lambda: gated("gelu_tanh")],
    "activate": [activate, lambda: activate("gelu_tanh")],
    "add": [add],
    "rope_table": [rope_table],
    "rope": [rope, lambda: rope(20), lambda: rope(interleaved=True), lambda: rope(24, interleaved=True)],
    "kv_write": [attend],
    "attend": [
        lambda: attend(3, 3),
        lambda: attend(6, 1),
        lambda: attend(window=32),
        lambda: attend(window=5),
        lambda: attend(softcap=2.0),
        lambda: attend(slopes=(0.5, 0.25, 0.03125, 0.004)),
        lambda: attend(4, 1, window=40, softcap=3.0, slopes=(0.5, 0.25, 0.03125, -0.004)),
    ],
    "rope_kv": [rope_kv, lambda: rope_kv(24), lambda: rope_kv(interleaved=True), lambda: rope_kv(24, interleaved=True)],
    "head": [
        head,
        lambda: head(normed=False),
        lambda: head(scale=0.5),
        lambda: head(softcap=0.7),
        lambda: head(scale=3.0, softcap=0.7, normed=False),
    ],
}


def refused(backend: str, module: Module) -> bool:
    """Whether the backend refuses an op of the module; then compiling it must fail with that reason."""
    made = BACKENDS.get(backend)()
    reasons = [reason for op in module.entries["target"].ops if (reason := made.refuses(op))]
    if reasons:
        with pytest.raises(BackendError, match=re.escape(reasons[0])):
            made.compile(module, CompileOptions(max_tokens=1, max_rows=1))
    return bool(reasons)


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("kind", entries("op"))
def test_op_is_its_formula(kind: str, backend: str) -> None:
    for number, case in enumerate(CASES[kind]):
        module, wanted = case()
        assert any(op.kind == kind for op in module.entries["target"].ops)
        if number and refused(backend, module):
            continue
        got = result(backend, module)
        assert np.abs(got - wanted).max() < TOLERANCE * wanted.std(), (kind, number)


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("kind", entries("op"))
def test_op_does_not_see_the_chunking(kind: str, backend: str) -> None:
    module, wanted = CASES[kind][0]()
    for chunk in (1, 17, 64):
        got = result(backend, module, chunk)
        assert np.abs(got - wanted).max() < TOLERANCE * wanted.std(), (kind, chunk)


def lowered(module: Module) -> Module:
    """The module with every op that can be said in simpler ones replaced by these."""
    entry = module.entries["target"]
    ops, values = [], dict(entry.values)
    for op in entry.ops:
        for part in OPS.get(op.kind)().lower(op) or [op]:
            shapes = OPS.get(part.kind)().shapes(part, replace(module.tables("target"), values=values))
            values |= {name: Value(name, shape) for name, shape in zip(part.outputs, shapes, strict=True)}
            ops.append(part)
    return module.with_entry(replace(entry, ops=tuple(ops), values=values))


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("kind", entries("op"))
def test_lowered_it_gives_the_same_values(kind: str, backend: str) -> None:
    for number, case in enumerate(CASES[kind]):
        module, wanted = case()
        simple = lowered(module)
        if simple.entries["target"].ops == module.entries["target"].ops or (number and refused(backend, simple)):
            continue
        assert np.abs(result(backend, simple) - wanted).max() < TOLERANCE * wanted.std(), (kind, number)


def test_some_ops_are_lowered() -> None:
    kinds = {kind for kind in CASES for case in CASES[kind] for op in case()[0].entries["target"].ops
             if op.kind == kind and OPS.get(kind)().lower(op)}  # fmt: skip
    assert {"linear", "rope_kv"} <= kinds


@pytest.mark.parametrize("kind", entries("op"))
def test_rules_are_complete(kind: str) -> None:
    """Each rule gives shapes, a cost of what it moves, and a lowering to other ops or none."""
    module, _ = CASES[kind][0]()
    tables = module.tables("target")
    for op in module.entries["target"].ops:
        rule = OPS.get(op.kind)()
        assert len(rule.shapes(op, tables)) == len(op.outputs)
        parts = rule.lower(op)
        assert parts is None or op not in parts
