"""Promise 1 on the CPU backend: a row's bits depend on its own sequence alone (docs/numerics.md)."""

import numpy as np
import pytest
from tests.backends.mini import Piece, bits, compiled, mini_module, random_tokens, run

from pelton.backends.backend import Executable
from pelton.backends.cpu import _native

LENGTH = 560  # crosses a chunk border of 512 and ends inside a tile
FORMS = ("Q4_0", "Q4_1", "Q8_0", "BF16", "F16", "F32")


def whole(executable: Executable) -> bytes:
    tokens = random_tokens(LENGTH)
    return bits(run(executable, [Piece(tokens, 0, range(1, 19))], logprobs=3, temperature=0.8, seed=7), 0)


def in_chunks(executable: Executable, size: int, seed: int = 0) -> bytes:
    tokens = random_tokens(LENGTH)
    table = np.random.default_rng([seed, size]).permutation(np.arange(20, 40)).tolist()
    for start in range(0, LENGTH, size):
        out = run(executable, [Piece(tokens[start : start + size], start, table)], logprobs=3, temperature=0.8, seed=7)
    return bits(out, 0)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_neighbours_and_blocks_change_no_bit(form: str) -> None:
    executable = compiled(mini_module(form))
    expected = whole(executable)
    for size in (1, 7, 16, 64, 100):
        assert in_chunks(executable, size) == expected, size
    rng = np.random.default_rng(3)
    tokens, start, steps = random_tokens(LENGTH), 0, 0
    while start < LENGTH:
        size = int(rng.integers(1, 90))
        mine = Piece(tokens[start : start + size], start, range(1, 19))
        others = [
            Piece(random_tokens(int(rng.integers(1, 60)), seed=i), 0, range(40 + 2 * i, 42 + 2 * i)) for i in range(7)
        ]
        place = int(rng.integers(0, 8))
        out = run(executable, [*others[:place], mine, *others[place:]], logprobs=3, temperature=0.8, seed=7)
        start, steps = start + size, steps + 1
    assert steps > 5 and bits(out, place) == expected


def test_float32_is_as_exact() -> None:
    executable = compiled(mini_module("Q4_1"), exact=True)
    expected = whole(executable)
    assert expected != whole(compiled(mini_module("Q4_1")))
    assert in_chunks(executable, 1) == in_chunks(executable, 33) == expected


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_set_gives_the_same_bits(form: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        executable = compiled(mini_module(form, layers=2), exact=exact)
        found[isa] = whole(executable), in_chunks(executable, 64)
    assert "portable" in found and len(set(found.values())) == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_change_no_bit(threads: int) -> None:
    module = mini_module("Q4_1")
    executable = compiled(module, threads=threads)
    assert whole(executable) == in_chunks(executable, 1) == whole(compiled(module, threads=2))


@pytest.mark.parametrize("form", ["Q4_1", "BF16"])
def test_a_fused_op_gives_the_bits_of_its_parts(form: str) -> None:
    plain, fused = mini_module(form, fused=False), mini_module(form)
    kinds = {op.kind for op in plain.entries["target"].ops}, {op.kind for op in fused.entries["target"].ops}
    assert {"rms_norm", "gated", "add", "rope", "kv_write"} <= kinds[0]
    assert kinds[1] == {"rope_table", "embed", "linear", "rope_kv", "attend", "head"}
    assert whole(compiled(plain)) == whole(compiled(fused))


def test_a_nan_in_the_cache_fails_its_own_row_only() -> None:
    executable = compiled(mini_module("Q4_1"))
    tokens = random_tokens(40)
    good, bad = Piece(tokens, 0, [1, 2]), Piece(tokens, 0, [3, 4])
    run(executable, [good, bad])
    step = [Piece([5], 40, [1, 2]), Piece([5], 40, [3, 4])]
    before = run(executable, step)
    blocks = executable.blocks()
    poisoned = blocks.export_canonical(0, 3, 32)
    poisoned[1, 1, 0, 17, 3] = np.nan
    blocks.import_canonical(0, 3, poisoned)
    after = run(executable, step)
    assert before.faults.tolist() == [0, 0] and after.faults.tolist() == [0, 1]
    assert bits(after, 0) == bits(before, 0)


def test_what_stands_behind_the_sequence_is_never_read() -> None:
    executable = compiled(mini_module("Q4_1"))
    step = [Piece(random_tokens(40), 0, [1, 2])]
    before = bits(run(executable, step), 0)
    blocks = executable.blocks()
    rest = blocks.export_canonical(0, 2, 32)
    rest[..., 8:, :] = np.nan
    blocks.import_canonical(0, 2, rest)
    assert bits(run(executable, step), 0) == before


@pytest.mark.parametrize("exact", [False, True])
def test_block_operations(exact: bool) -> None:
    executable = compiled(mini_module("Q4_1"), exact=exact)
    tokens = random_tokens(40)
    run(executable, [Piece(tokens, 0, [1, 2])])
    expected = bits(run(executable, [Piece([5], 40, [1, 2])]), 0)
    blocks = executable.blocks()
    blocks.copy(0, 1, 7)
    blocks.import_canonical(0, 9, blocks.export_canonical(0, 2, 32))
    assert bits(run(executable, [Piece([5], 40, [7, 9])]), 0) == expected
    blocks.scrub(0, 7)
    assert not blocks.export_canonical(0, 7, 32).any()
    assert bits(run(executable, [Piece([5], 40, [7, 9])]), 0) != expected


@pytest.mark.parametrize(
    ("piece", "what"),
    [
        (Piece([5], 0, [160]), "block outside"),
        (Piece([5], 0, [-1]), "block outside"),
        (Piece([500], 0, [1]), "outside of the vocabulary"),
        (Piece([-1], 0, [1]), "outside of the vocabulary"),
        (Piece([5], 32, [1]), "shorter than its sequence"),
    ],
)
def test_a_step_outside_of_its_memory_is_refused(piece: Piece, what: str) -> None:
    executable = compiled(mini_module("Q4_1"))
    with pytest.raises(ValueError, match=what):
        run(executable, [piece])


def test_a_step_larger_than_compiled_for_is_refused() -> None:
    executable = compiled(mini_module("Q4_1"), tokens=16)
    with pytest.raises(ValueError, match="compiled for 16 tokens"):
        run(executable, [Piece(random_tokens(17), 0, [1])])
