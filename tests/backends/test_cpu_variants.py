"""All that models do beside the Llama way: exact in chunks and on every instruction set, fused as its parts, costed."""

import numpy as np
import pytest
from tests.backends.mini import Piece, bits, compiled, random_tokens, run
from tests.backends.test_cpu_counters import STEPS, check
from tests.backends.variants import LAYERS, VARIANTS, variant

from pelton.backends.backend import Executable
from pelton.backends.cpu import _native
from pelton.program.module import Module

LENGTH = 150
FUSED = {
    "sandwich": {"rope_table", "embed", "rms_norm", "linear", "rope_kv", "attend", "add", "head"},
    "behind": {"rope_table", "embed", "rms_norm", "linear", "rope_kv", "attend", "add", "head"},
    "centred": {"embed", "layer_norm", "linear", "activate", "kv_write", "attend", "head"},
    "partial": {"rope_table", "embed", "linear", "rope_kv", "kv_write", "attend", "head"},
}


def in_chunks(executable: Executable, module: Module, size: int = LENGTH) -> bytes:
    tokens, rng = random_tokens(LENGTH), np.random.default_rng(size)
    tables = [rng.permutation(np.arange(1, 20)).tolist() for _ in module.states]
    for start in range(0, LENGTH, size):
        out = run(executable, [Piece(tokens[start : start + size], start, tables)], logprobs=3)
        assert not out.faults.any()
    return bits(out, 0)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("exact", [False, True])
def test_chunks_threads_and_instruction_sets_change_no_bit(
    name: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, found = variant(name), set()
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        for threads in (1, 3):
            executable = compiled(module, exact=exact, threads=threads, blocks=20)
            found |= {in_chunks(executable, module), in_chunks(executable, module, 37)}
    found.add(in_chunks(compiled(module, exact=exact, blocks=20), module, 1))
    assert len(found) == 1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_fused_op_gives_the_bits_of_its_parts(name: str) -> None:
    plain, fused = variant(name, fused=False), variant(name)
    assert {op.kind for op in fused.entries["target"].ops} == FUSED[name]
    assert in_chunks(compiled(plain, blocks=20), plain) == in_chunks(compiled(fused, blocks=20), fused)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fused", [True, False])
def test_labels_tell_ops_apart(name: str, fused: bool) -> None:
    module = variant(name, fused=fused)
    labels = compiled(module).labels()
    ops = module.entries["target"].ops
    assert len(labels) == len(set(labels)) == len(ops)
    assert all(op.kind in label for op, label in zip(ops, labels, strict=True))
    attends = [label for label in labels if label.endswith("attend")]
    assert attends == [f"layer {layer} attend" for layer in range(LAYERS)]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fused", [True, False])
def test_cost_rules_agree_with_the_kernels(name: str, fused: bool, step: list[tuple[int, int]]) -> None:
    module = variant(name, fused=fused)
    check(module, compiled(module, blocks=240), step, False)
