"""Activations of 8 bits: as exact about themselves as the rest, seen by all who read a Program, near to the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.mini import HIDDEN, Piece, bits, compiled, mini_module, random_tokens, run
from tests.backends.test_cpu_counters import STEPS, check
from tests.oracle.driver import Driver
from tests.program.sources import ArraySource

from pelton.backends.backend import Executable
from pelton.backends.cpu import _native
from pelton.core.errors import SettingError
from pelton.program.coordinates import coordinates
from pelton.program.module import Module
from pelton.program.passes.activations import described, with_activations

LENGTH = 150
FORMS = ("Q4_0", "Q4_1", "Q8_0", "Q5_1", "IQ4_NL")


def rounded(form: str = "Q4_1", *, fused: bool = True, layers: int = 2) -> Module:
    return with_activations(mini_module(form, fused=fused, layers=layers), "int8")[0]


def in_chunks(executable: Executable, size: int = LENGTH) -> bytes:
    tokens = random_tokens(LENGTH)
    table = np.random.default_rng(size).permutation(np.arange(1, 20)).tolist()
    for start in range(0, LENGTH, size):
        out = run(executable, [Piece(tokens[start : start + size], start, table)], logprobs=3)
        assert not out.faults.any()
    return bits(out, 0)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_neighbours_threads_and_instruction_sets_change_no_bit(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = rounded(form)
    expected = in_chunks(compiled(module))
    assert expected != in_chunks(compiled(mini_module(form, layers=2)))
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        for threads in (1, 3):
            executable = compiled(module, threads=threads)
            assert {in_chunks(executable, size) for size in (1, 5, 37, LENGTH)} == {expected}, isa
            others = [Piece(random_tokens(20 + i, seed=i), 0, range(40 + 2 * i, 42 + 2 * i)) for i in range(7)]
            mine = Piece(random_tokens(LENGTH), 0, range(20, 40))
            assert bits(run(executable, [*others[:3], mine, *others[3:]], logprobs=3), 3) == expected, isa


@pytest.mark.parametrize("form", ["Q4_1", "Q8_0"])
def test_a_fused_op_gives_the_bits_of_its_parts(form: str) -> None:
    assert in_chunks(compiled(rounded(form, fused=False))) == in_chunks(compiled(rounded(form)))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_cost_rules_agree_with_the_kernels(step: list[tuple[int, int]]) -> None:
    module = rounded(layers=3)
    check(module, compiled(module, blocks=240), step, False)


@pytest.mark.parametrize("form", FORMS)
def test_nearer_to_the_reference_than_to_other_activations(form: str) -> None:
    """The norms of the two differ in the last bit, and where one of 8 bits turns over with it, so do they."""
    module, plain, tokens = rounded(form), mini_module(form, layers=2), random_tokens(70)
    ours, theirs, unrounded = (
        Driver(backend, m).logits({"a": tokens})["a"]
        for backend, m in (("cpu", module), ("reference", module), ("cpu", plain))
    )
    apart, cost = np.abs(ours - theirs), np.abs(ours - unrounded)
    assert np.median(apart) < np.median(cost) / 3
    assert apart.mean() < cost.mean() / 2


def test_marks_are_part_of_the_program() -> None:
    plain, (module, notes) = mini_module(), with_activations(mini_module(), "int8")
    linears = [op for op in module.entries["target"].ops if op.kind == "linear"]
    assert linears
    assert all(op.text("activations") == "int8" for op in linears)
    assert coordinates(module) != coordinates(plain)
    assert described(plain) == ""
    assert described(module).startswith("activations of 8 bits")
    assert len(notes) == 1
    assert with_activations(plain, "auto") == (plain, ())


def test_dense_matrices_stay_as_they_are() -> None:
    with pytest.raises(SettingError, match="no effect") as caught:
        with_activations(mini_module("BF16", embedding="BF16"), "int8")
    assert "quantization='int8'" in str(caught.value)
    mixed = mini_module("Q4_1")
    others = mini_module("BF16").storages
    dense = {name: storage for name, storage in others.items() if "v_proj" in name}
    module, _ = with_activations(replace(mixed, storages={**mixed.storages, **dense}), "int8")
    ops = [op for op in module.entries["target"].ops if op.kind == "linear"]
    assert {bool(op.text("activations")) for op in ops if len(op.weights) == 3} == {False}
    assert {bool(op.text("activations")) for op in ops if len(op.weights) != 3} == {True}
    assert in_chunks(compiled(module)) == in_chunks(compiled(module), 7)


def test_a_row_that_is_not_finite_fails_alone() -> None:
    module = rounded()
    embedding = module.storages["model.embed_tokens.weight"]
    raw = np.frombuffer(embedding.source.read(), np.uint8).copy().reshape(embedding.rows, HIDDEN // 32, 34)
    raw[7, 1, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    assert isinstance(embedding.source, ArraySource)
    source = replace(embedding.source, data=raw.tobytes())
    spoilt = replace(module, storages={**module.storages, embedding.name: replace(embedding, source=source)})
    tokens = [token for token in random_tokens(40) if token != 7]
    for count in (1, 9):
        pieces = [Piece(tokens, 0, range(10 + 4 * i, 14 + 4 * i)) for i in range(count)]
        out = run(compiled(spoilt), [*pieces, Piece([*tokens, 7], 0, range(1, 5))], logprobs=0)
        assert out.faults.tolist() == [0] * count + [1]


@pytest.mark.parametrize("forms", [("Q4_1", "Q8_0"), ("Q8_0", "Q4_1"), ("Q8_0", "Q5_1")])
def test_matrices_of_different_formats_share_their_rows(forms: tuple[str, str]) -> None:
    """One op reads rows in both of their orders; its parts read each in one."""

    def mixed(fused: bool) -> Module:
        module, others = (mini_module(form, fused=fused, layers=2) for form in forms)
        changed = {name: storage for name, storage in others.storages.items() if "v_proj" in name or "up_proj" in name}
        return with_activations(replace(module, storages={**module.storages, **changed}), "int8")[0]

    assert in_chunks(compiled(mixed(True)), 37) == in_chunks(compiled(mixed(False)))
