"""What the kernels really do in a step against what the cost rules say, and weight bytes against the number of rows."""

import time
from dataclasses import replace

import pytest
from tests.backends.mini import Piece, compiled, inputs, mini_module, random_tokens, run
from tests.program.one_op import Bench

from pelton.backends.backend import CompileOptions, Executable
from pelton.backends.cpu.backend import CpuBackend
from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module
from pelton.program.costs import op_costs
from pelton.program.module import Module
from pelton.program.op import Cost
from pelton.program.passes import run_passes
from pelton.program.values import StepShape

TOLERANCE = 0.05
FORMS = [("Q4_1", False), ("Q8_0", True), ("BF16", False), ("F32", False), ("F16", True)]
# (start, tokens) of the sequences in a step: decoding, a long prompt, a mixture.
STEPS = {
    "decode": [(700, 1)],
    "prefill": [(0, 256)],
    "chunk": [(300, 130)],
    "mixed": [(900, 1), (31, 1), (0, 200), (512, 3), (64, 65)],
}


def pieces(step: list[tuple[int, int]], groups: int = 1) -> list[Piece]:
    """Each sequence has blocks of its own; what stands in those not yet written does not matter here."""
    found, used = [], 1
    for i, (start, count) in enumerate(step):
        blocks = -(-(start + count) // 32)
        found.append(Piece(random_tokens(count, seed=i), start, [range(used, used + blocks)] * groups))
        used += blocks
    return found


def counted(executable: Executable, step: list[tuple[int, int]]) -> dict[str, int]:
    before = executable.counters()
    run(executable, pieces(step, len(executable.block_bytes)))
    return {name: value - before[name] for name, value in executable.counters().items()}


def expected(module: Module, step: list[tuple[int, int]], exact: bool) -> dict[str, Cost]:
    by_kind: dict[str, Cost] = {}
    for item in op_costs(module, StepShape(tuple(step), len(step)), exact=exact):
        by_kind[item.op.kind] = by_kind.get(item.op.kind, Cost()) + item.cost
    return by_kind


def check(module: Module, executable: Executable, step: list[tuple[int, int]], exact: bool) -> None:
    real = counted(executable, step)
    compared = 0
    for kind, cost in expected(module, step, exact).items():
        for what, rule in (("flops", cost.flops), ("read", cost.read), ("written", cost.written)):
            done = real[f"{what}:{kind}"]
            assert abs(done - rule) <= TOLERANCE * max(done, rule), (kind, what, done, rule)
            compared += done > 0
    assert compared >= 14


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    ("form", "exact"), [("Q4_1", False), ("Q8_0", True), ("BF16", False), ("F32", False), ("F16", True)]
)
@pytest.mark.parametrize("fused", [True, False])
def test_cost_rules_agree_with_the_kernels(form: str, exact: bool, fused: bool, step: list[tuple[int, int]]) -> None:
    module = mini_module(form, fused=fused)
    check(module, compiled(module, exact=exact, blocks=240), step, exact)


def test_cost_rules_agree_on_the_default_model(smollm2: object) -> None:
    module = run_passes(build_module(open_checkpoint(str(smollm2))))
    executable = compiled(module, blocks=240)
    for step in STEPS.values():
        check(module, executable, step, False)


def test_weight_bytes_do_not_depend_on_the_rows() -> None:
    module = mini_module("Q4_1")
    executable = compiled(module, blocks=240)
    read = {count: counted(executable, [(0, count)])["weight_bytes"] for count in (1, 2, 15, 16, 17, 100, 256)}
    matrices = sum(s.nbytes for name, s in module.storages.items() if "norm" not in name)
    assert len(set(read.values())) == 1
    # Padding to whole panels and K-blocks is the only difference to the file.
    assert matrices <= read[1] <= 1.1 * matrices


def test_the_head_reads_its_matrix_once_for_32_rows() -> None:
    executable = compiled(mini_module("Q4_1"), blocks=240)

    def head(rows: int) -> int:
        return counted(executable, [(0, 1)] * rows)["read:head"]

    def of_matrix(rows: int) -> float:
        activations = head(2) - head(1)
        return head(rows) - rows * activations

    assert of_matrix(1) == of_matrix(32)
    assert of_matrix(33) == of_matrix(64) == 2 * of_matrix(1)


def test_all_memory_is_told() -> None:
    """Vectors beside matrices, and what attention has for chunks that meet later."""
    module = mini_module("F32")
    norms = sum(4 * (s.rows * s.cols) for name, s in module.storages.items() if "norm" in name)
    executable = compiled(module, exact=True, blocks=40)
    matrices = sum(s.nbytes for name, s in module.storages.items() if "norm" not in name)
    assert executable.memory.weights >= matrices + norms
    before = executable.memory.activations
    executable.allocate((4000,))
    assert executable.memory.activations > before, "a longer context has more chunks"


def test_rows_are_made_ready_once_in_the_counts() -> None:
    """However many workers do it for themselves."""
    module = mini_module("Q4_1")
    found = []
    for threads in (1, 5):
        executable = compiled(module, threads=threads, blocks=240)
        found.append([counted(executable, [(0, 1)]) for _ in range(20)])
    for kind in ("flops:linear", "read:linear", "read:head", "flops:head"):
        assert {one[kind] for one in found[0]} == {one[kind] for one in found[1]}, kind


def test_waiting_is_told_of_ops_without_products_too() -> None:
    """Of two threads that share the rows of a step one is done before the other; no logits, so no product.

    On a busy machine a step is often over before the second thread has come to it, so steps run until one did.
    """
    bench = Bench()
    (x, _), (y, _) = bench.rows(4096), bench.rows(4096)
    for number in range(20):
        (x,) = bench.builder.op("add", (x, y), (f"sum{number}",))
    executable = CpuBackend().compile(bench.seen(x, 4096), CompileOptions(200, 8, threads=2))
    executable.allocate(())
    step = inputs([Piece([1] * 200, 0, range(1, 9))])
    none = {"logit_rows": step.logit_rows[:0], "sampling": step.sampling[:0], "tables": step.tables[:0]}
    bare = replace(step, want_logits=False, **none)  # type: ignore[arg-type]
    deadline = time.monotonic() + 60
    found = executable.counters()
    while not found["wait_ns"] and time.monotonic() < deadline:
        for _ in range(50):
            executable.run(bare)
        found = executable.counters()
    assert 0 < found["wait_ns"] < found["worker_ns"] and not found["read:linear"] and not found["read:head"]
