"""What only the reference backend promises: lowering, its default arithmetic, handed-in choices, refusals, counters."""

from dataclasses import replace

import numpy as np
import pytest
from tests.oracle.driver import Driver, sampling
from tests.oracle.tiny import worst
from tests.program import expected
from tests.program.one_op import TOKENS, Bench

from pelton.backends.backend import EDIT, CompileOptions, Float32, Records
from pelton.backends.reference import kernels
from pelton.backends.reference.backend import ReferenceBackend
from pelton.backends.reference.executable import lowered
from pelton.core.errors import BackendError
from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.op import Op
from pelton.program.states import KVSpec
from pelton.program.values import StepShape


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Nearest numbers with 8 significant bits, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def fused() -> tuple[Module, Op]:
    bench = Bench()
    (x, _), (residual, _), (gain, _) = bench.rows(64), bench.rows(48), bench.vector(64)
    matrices = tuple(bench.matrix(48, 64)[0] for _ in range(2))
    attrs = {"gain": gain, "eps": 1e-3, "activation": "silu"}
    bench.builder.op("linear", (x, residual), ("y",), weights=matrices, attrs=attrs)
    module = bench.seen("y", 48)
    return module, next(op for op in module.entries["target"].ops if op.kind == "linear")


def test_fused_ops_become_their_parts() -> None:
    _, op = fused()
    parts = lowered([op])
    assert [part.kind for part in parts] == ["rms_norm", "linear", "linear", "gated", "add"]
    assert parts[-1].outputs == ("y",)
    assert lowered(parts) == parts


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_default_arithmetic_rounds_inputs_and_dense_weights(form: str) -> None:
    """x is rounded to bf16; F32 weights too, while quantised ones keep their exact scale times code."""
    bench = Bench()
    (x, numbers), (matrix, weights) = bench.rows(64), bench.matrix(48, 64, form)
    bench.builder.op("linear", (x,), ("y",), weights=(matrix,))
    weights = bfloat16(weights) if form == "F32" else weights
    # The table of rows is dense too; the identity head rounds what it is given.
    wanted = bfloat16(bfloat16(numbers) @ weights.T)
    got = Driver("reference", bench.seen("y", 48), exact=False).chunked(TOKENS, 75)[:, :48]
    # Where fp32 sums and fp64 ones round to different neighbours, one of 256 steps lies between.
    assert np.abs(got - wanted).max() <= np.abs(wanted).max() / 256
    assert (got == wanted).mean() > 0.99


def test_default_arithmetic_caches_bf16() -> None:
    bench = Bench()
    (q, queries), (k, keys), (v, values) = bench.rows(32), bench.rows(32), bench.rows(32)
    bench.builder.state(KVSpec(2, 16, 16))
    bench.builder.op("kv_write", (k, v), state="kv0", attrs={"layer": 0})
    attrs = {"layer": 0, "heads": 2, "scale": 0.3, "softcap": 0.0}
    bench.builder.op("attend", (q,), ("y",), state="kv0", attrs=attrs)
    driver = Driver("reference", bench.seen("y", 32), exact=False)
    got = driver.chunked(TOKENS, 75)[:, :32]
    wanted = expected.attention(bfloat16(queries), bfloat16(keys), bfloat16(values), 2, 0.3)
    assert 0 < worst(got, wanted.astype(np.float32)) < 0.02
    cached = driver.executable.blocks().export_canonical(0, driver.table("a")[0], 32)
    np.testing.assert_array_equal(cached, bfloat16(cached))
    assert driver.executable.block_bytes == (32 * 2 * 32 * 2,)


def test_the_choice_can_be_handed_in() -> None:
    """The function sees raw logits, the row's record and its edits; its answer is passed on."""
    module, _ = fused()
    seen: list[tuple[int, list[int]]] = []

    def second(logits: Float32, record: np.void, edits: Records) -> tuple[int, float, int, list[int], list[float]]:
        seen.append((int(record["seed"]), edits["token"].tolist()))
        order = np.argsort(-logits)
        return int(order[1]), -0.5, 2, order[:1].tolist(), [-0.25]

    options = CompileOptions(max_tokens=8, max_rows=8, exact=True, threads=1, choose=second)
    executable = ReferenceBackend().compile(module, options)
    executable.allocate(())
    driver = Driver("reference", module)
    inputs = driver.inputs({"a": [1, 2, 3]}, seed=np.array([7, 8, 9]), logprobs=1)  # type: ignore[arg-type]
    edits = np.array([(4, 0, 0, 0), (5, 0, 0, 0), (6, 0, 0, 0)], EDIT)
    out = executable.run(replace(inputs, edits=edits, edit_offsets=np.array([0, 2, 2, 3], np.int32)))
    assert out.logits is not None
    assert seen == [(7, [4, 5]), (8, []), (9, [6])]
    np.testing.assert_array_equal(out.tokens, np.argsort(-out.logits, axis=-1)[:, 1])
    np.testing.assert_array_equal(out.logprobs, -0.5)
    np.testing.assert_array_equal(out.ranks, 2)
    np.testing.assert_array_equal(out.top_ids[:, 0], np.argsort(-out.logits, axis=-1)[:, 0])
    np.testing.assert_array_equal(out.top_logprobs, -0.25)


def test_unknown_ops_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:

    module, op = fused()
    monkeypatch.delitem(kernels.KERNELS, "gated")  # type: ignore[arg-type]
    backend = ReferenceBackend()
    assert backend.refuses(op) == "reference: no kernel for gated"
    with pytest.raises(BackendError, match="no kernel for gated"):
        backend.compile(module, CompileOptions(max_tokens=1, max_rows=1))


def test_counters_are_the_cost_rules() -> None:
    module, op = fused()
    driver = Driver("reference", module)
    driver.step({"a": TOKENS[:5], "b": TOKENS[:3]})
    counters = driver.executable.counters()
    tables = module.tables("target", exact=True)
    cost = OPS.get("linear")().cost(op, tables, StepShape(((0, 5), (0, 3)), 8))
    assert counters["flops:linear"] == cost.flops
    assert counters["read:linear"] == cost.read
    assert counters["written:linear"] == cost.written
    assert counters["weight_bytes"] == 2 * 48 * 64 * 4 + 48 * 48 * 4
    assert counters["steps"] == 1


def test_sampling_records_default_to_greedy() -> None:
    records = sampling(2, seed=3)
    assert records["temperature"].tolist() == [0, 0]
    assert records["seed"].tolist() == [3, 3]
