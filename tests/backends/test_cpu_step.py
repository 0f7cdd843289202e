"""What a step is told beside its tokens: edits, targets and block operations, through the real executable."""

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.mini import VOCAB, Piece, bits, compiled, inputs, mini_module, random_tokens, run
from tests.oracle.driver import sampling

from pelton.backends.backend import COPY, EDIT, FAULT_NO_TOKEN, SCRUB, SEEN, BlockOps, CompileOptions
from pelton.backends.cpu.backend import CpuBackend

LENGTHS = (3, 40, 1, 70)


def pieces() -> list[Piece]:
    return [Piece(random_tokens(n, seed=n), 0, range(3 * i + 1, 3 * i + 4)) for i, n in enumerate(LENGTHS)]


def test_each_row_has_its_own_edits() -> None:
    """Rows without any draw as ever; the largest logit banned gives the second; all banned fails that row alone."""
    executable = compiled(mini_module())
    plain = inputs(pieces(), logprobs=2)
    before = executable.run(plain)
    edits = np.zeros(VOCAB + 3, EDIT)
    edits[0] = (before.tokens[1], -np.inf, 0, 0)
    edits["token"][1 : VOCAB + 1] = np.arange(VOCAB)
    edits["bias"][1 : VOCAB + 1] = -np.inf
    edits[VOCAB + 1] = (7, 1e6, 0, 0)
    edits[VOCAB + 2] = (before.tokens[3], 0, 1, SEEN)
    offsets = np.array([0, 0, 1, VOCAB + 1, VOCAB + 3], np.int32)
    after = executable.run(replace(plain, edits=edits, edit_offsets=offsets))
    assert bits(after, 0) == bits(before, 0)
    assert after.tokens.tolist() == [before.tokens[0], before.top_ids[1, 1], 0, 7]
    assert after.faults.tolist() == [0, 0, FAULT_NO_TOKEN, 0]
    assert (after.logprobs[1], after.ranks[1]) == (before.top_logprobs[1, 1], 2)
    assert after.top_ids[[0, 1, 3]].tolist() == before.top_ids[[0, 1, 3]].tolist()
    assert after.top_ids[2].tolist() == [-1, -1]
    assert after.logits is not None and before.logits is not None
    np.testing.assert_array_equal(after.logits, before.logits)


def test_more_targets_than_a_group_of_rows() -> None:
    """All next tokens of a prompt scored in one step: as from the logits, and 600 rows as in steps of one row."""
    executable = compiled(mini_module(), rows=600)
    tokens = random_tokens(600)
    records = sampling(600, logprobs=1)
    records["target"] = [*tokens[1:], -1]
    step = replace(
        inputs([Piece(tokens, 0, range(1, 20))]), logit_rows=np.arange(600, dtype=np.int32), sampling=records
    )
    out = executable.run(step)
    assert out.tokens[:-1].tolist() == tokens[1:]
    assert out.logits is not None
    exact = out.logits.astype(np.float64)
    logprobs = exact - np.logaddexp.reduce(exact, axis=-1, keepdims=True)
    np.testing.assert_allclose(out.logprobs, np.take_along_axis(logprobs, out.tokens[:, None], -1)[:, 0], atol=4e-6)
    own = np.take_along_axis(out.logits, out.tokens[:, None], -1)
    np.testing.assert_array_equal(out.ranks, 1 + (out.logits > own).sum(-1))
    np.testing.assert_array_equal(out.top_ids[:, 0], out.logits.argmax(-1))
    for row in (0, 31, 32, 599):
        alone = executable.run(
            replace(step, logit_rows=step.logit_rows[row : row + 1], sampling=records[row : row + 1])
        )
        assert bits(alone, 0) == bits(out, row)


def filled(blocks: BlockOps, ids: tuple[int, ...]) -> dict[int, bytes]:
    """Random content in these blocks."""
    rng = np.random.default_rng(0)
    for block in ids:
        shape = blocks.export_canonical(0, block, 32).shape
        blocks.import_canonical(0, block, rng.standard_normal(shape).astype(np.float32))
    return {block: content(blocks, block) for block in ids}


def content(blocks: BlockOps, block: int) -> bytes:
    return blocks.export_canonical(0, block, 32).tobytes()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        # What each of blocks 5, 6, 7, 8 holds afterwards: the former content of that block, 0: zeros.
        ([(COPY, 0, 5, 6), (COPY, 0, 6, 7)], (5, 5, 5, 8)),
        ([(COPY, 0, 6, 7), (COPY, 0, 5, 6)], (5, 5, 6, 8)),
        ([(SCRUB, 0, 5, 5), (COPY, 0, 5, 6)], (0, 0, 7, 8)),
        ([(COPY, 0, 5, 6), (SCRUB, 0, 5, 5)], (0, 5, 7, 8)),
        ([(COPY, 0, 5, 8), (COPY, 0, 6, 5), (COPY, 0, 8, 6)], (6, 5, 7, 5)),
        ([(COPY, 0, 5, 5), (SCRUB, 0, 0, 7)], (5, 6, 0, 8)),
    ],
)
def test_block_operations_happen_in_order(
    ops: list[tuple[int, int, int, int]], wanted: tuple[int, ...], exact: bool
) -> None:
    executable = compiled(mini_module(), exact=exact, blocks=10)
    blocks = executable.blocks()
    before = filled(blocks, (5, 6, 7, 8))
    zeros = bytes(len(before[5]))
    executable.run(replace(inputs([Piece([1, 2], 0, [1])]), block_ops=np.array(ops, np.int32)))
    assert [content(blocks, block) for block in before] == [before.get(block, zeros) for block in wanted]


def test_block_operations_come_before_the_step() -> None:
    """A copied block is continued in the same step; the copy's source is written on in it, and not the copy."""
    executable = compiled(mini_module())
    tokens = random_tokens(40)
    run(executable, [Piece(tokens, 0, [1, 2])])
    expected = bits(run(executable, [Piece([5], 40, [1, 2])]), 0)
    fork = inputs([Piece([9], 40, [1, 2]), Piece([5], 40, [1, 7])])
    out = executable.run(replace(fork, block_ops=np.array([[COPY, 0, 2, 7]], np.int32)))
    assert bits(out, 1) == expected
    assert bits(out, 0) != expected
    scrubbed = replace(inputs([Piece([5], 40, [1, 7])]), block_ops=np.array([[SCRUB, 0, 1, 1]], np.int32))
    assert bits(executable.run(scrubbed), 0) != expected


def test_a_refused_step_has_done_nothing() -> None:
    executable = compiled(mini_module(), blocks=10)
    blocks = executable.blocks()
    before = filled(blocks, (5, 6))
    ops = np.array([[COPY, 0, 5, 6], [SCRUB, 0, 5, 10]], np.int32)
    with pytest.raises(ValueError, match="outside of the pool"):
        executable.run(replace(inputs([Piece([1], 0, [1])]), block_ops=ops))
    assert {block: content(blocks, block) for block in before} == before


def test_working_memory_is_told() -> None:
    """It grows with the step's size and covers a row group of logits; weights and blocks are not in it."""
    small, large = (CpuBackend().compile(mini_module(), CompileOptions(n, 64, threads=1)) for n in (32, 512))
    assert 32 * VOCAB * 4 < small.memory.activations < large.memory.activations
    before = large.memory.activations
    large.allocate((4000,))
    assert large.memory.activations - before < large.block_bytes[0] * 4000 / 10
