"""KV groups: each has blocks, tables and a window of its own. What no token of a step sees is never looked at."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.mini import Piece, compiled, inputs, mini_module, random_tokens, with_windows

from pelton.backends.backend import COPY, SCRUB, Executable
from pelton.backends.cpu import _native
from pelton.program.module import Module

LENGTH, BLOCKS = 330, 48
WINDOWS = (1, 2, 31, 33, 50, 64, 65, 100)
Floats = NDArray[np.float32]


def poison(executable: Executable, group: int, blocks: Sequence[int]) -> None:
    for block in blocks:
        content = executable.blocks().export_canonical(group, block, 32)
        executable.blocks().import_canonical(group, block, np.full_like(content, np.nan))


@dataclass
class Fed:
    """A sequence fed piece by piece. Each group draws its blocks from a pool of its own in an order of its own.

    `frees`: blocks behind a group's window are given back, their places hold the null block, and both are full of NaN.
    """

    executable: Executable
    module: Module
    frees: bool = True
    tables: list[list[int]] = field(default_factory=list)
    pools: list[list[int]] = field(default_factory=list)
    freed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(len(self.module.states))
        for group in range(len(self.module.states)):
            self.tables.append([])
            self.pools.append(rng.permutation(np.arange(1, BLOCKS)).tolist())
            poison(self.executable, group, range(BLOCKS))

    def step(
        self, tokens: Sequence[int], start: int, others: Sequence[Piece] = ()
    ) -> tuple[Floats, NDArray[np.uint64]]:
        """Logits [tokens, vocab] and hashes [ops, tokens] of these tokens, which stand before the others."""
        for group, (table, pool, state) in enumerate(
            zip(self.tables, self.pools, self.module.states.values(), strict=True)
        ):
            while len(table) * 32 < start + len(tokens):
                table.append(pool.pop())
            window = state.spec.window if self.frees else None
            behind = 0 if window is None else max(0, start - window + 1) // 32
            given_back = [block for block in table[:behind] if block]
            table[:behind] = [0] * behind
            poison(self.executable, group, given_back)
            pool += given_back
            self.freed += len(given_back)
        step = inputs([Piece(tokens, start, self.tables), *others])
        rows = np.arange(len(tokens), dtype=np.int32)
        wanted = replace(step, logit_rows=rows, sampling=np.repeat(step.sampling[:1], len(rows)), trace=True)
        out = self.executable.run(wanted)
        assert out.logits is not None and out.trace is not None
        return out.logits, out.trace[:, : len(tokens)]


def whole(executable: Executable, module: Module, length: int = LENGTH) -> tuple[bytes, bytes]:
    logits, trace = Fed(executable, module, frees=False).step(random_tokens(LENGTH)[:length], 0)
    assert np.isfinite(logits).all()
    return logits.tobytes(), trace.tobytes()


def in_pieces(
    executable: Executable, module: Module, sizes: Sequence[int], *, frees: bool = True
) -> tuple[bytes, bytes]:
    tokens, start, parts = random_tokens(LENGTH), 0, []
    fed = Fed(executable, module, frees)
    for size in sizes:
        parts.append(fed.step(tokens[start : start + size], start))
        start += size
    assert bool(fed.freed) == frees
    logits, traces = zip(*parts, strict=True)
    return np.concatenate(logits).tobytes(), np.concatenate(traces, axis=1).tobytes()


def even(size: int) -> list[int]:
    return [min(size, LENGTH - start) for start in range(0, LENGTH, size)]


@pytest.mark.parametrize("window", WINDOWS)
def test_chunks_and_freed_blocks_change_no_bit(window: int) -> None:
    module = with_windows(mini_module(layers=2), window)
    executable = compiled(module, rows=LENGTH, blocks=BLOCKS)
    expected = whole(executable, module)
    uneven = np.diff([0, *sorted(np.random.default_rng(window).choice(np.arange(1, LENGTH), 9, replace=False)), LENGTH])
    for sizes in (even(1), even(40), uneven.tolist()):
        assert in_pieces(executable, module, sizes) == expected, sizes
    assert in_pieces(executable, module, even(64), frees=False) == expected


@pytest.mark.parametrize("exact", [False, True])
def test_every_instruction_set_and_number_of_threads(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = with_windows(mini_module(layers=3), 20, 67)
    found = set()
    for isa in _native.instruction_sets():
        monkeypatch.setenv("PELTON_ISA", isa)
        for threads in (1, 3):
            executable = compiled(module, rows=LENGTH, blocks=BLOCKS, exact=exact, threads=threads)
            found |= {whole(executable, module), in_pieces(executable, module, even(33))}
    assert len(found) == 1


def test_lengths_of_a_prompt() -> None:
    """A prompt's rows are those of each longer one."""
    module = with_windows(mini_module(layers=2), 37)
    executable = compiled(module, rows=LENGTH, blocks=BLOCKS)
    logits, _ = Fed(executable, module, frees=False).step(random_tokens(LENGTH), 0)
    for length in (1, 2, 31, 32, 33, 36, 37, 38, 63, 64, 65, 68, 69, 100, 257, 300):
        assert whole(executable, module, length)[0] == logits[:length].tobytes(), length


def test_a_window_that_hides_nothing_is_none() -> None:
    plain = mini_module(layers=2)
    executable = compiled(plain, rows=LENGTH, blocks=BLOCKS)
    wide = with_windows(plain, LENGTH)
    assert whole(executable, plain)[0] == whole(compiled(wide, rows=LENGTH, blocks=BLOCKS), wide)[0]
    narrow = with_windows(plain, LENGTH - 1)
    assert whole(executable, plain)[0] != whole(compiled(narrow, rows=LENGTH, blocks=BLOCKS), narrow)[0]


def test_neighbours_change_no_bit() -> None:
    module = with_windows(mini_module(layers=3), 20, 50)
    executable = compiled(module, rows=LENGTH, blocks=BLOCKS)
    tokens = random_tokens(200)
    alone = Fed(executable, module).step(tokens, 0)
    fed = Fed(executable, module)
    for group in range(3):
        fed.pools[group] = [block for block in fed.pools[group] if block > 20]
    others = [Piece(random_tokens(n, seed=n), 0, [range(1 + 3 * n, 4 + 3 * n)] * 3) for n in (1, 2, 3)]
    for start in range(0, 200, 60):
        logits, trace = fed.step(tokens[start : start + 60], start, others)
        assert logits.tobytes() == alone[0][start : start + 60].tobytes()
        assert trace[:-1].tobytes() == np.ascontiguousarray(alone[1][:-1, start : start + 60]).tobytes()
    assert fed.freed


def test_groups_have_sizes_of_their_own() -> None:
    """A windowed group needs no more blocks than a step sees; its table may be longer than its pool."""
    module = with_windows(mini_module(layers=3), 20)
    executable = compiled(module, blocks=2)
    full, windowed = executable.block_bytes
    assert full == 2 * windowed
    executable.allocate((12, 3))
    table = [list(range(1, 12)), [0] * 8 + [1, 2]]
    good = [Piece([5], 300, table[0:1] + [table[1] + [0]])]
    executable.run(inputs(good))
    for tables, what in (
        ([list(range(2, 13)), [0] * 11], "block outside"),
        ([list(range(1, 12)), [0] * 10 + [3]], "block outside"),
        ([list(range(1, 12)) * 2, [0] * 22], "more blocks than the pool"),
        ([list(range(1, 10)), [0] * 9], "shorter than its sequence"),
    ):
        with pytest.raises(ValueError, match=what):
            executable.run(inputs([Piece([5], 300, tables)]))
    with pytest.raises(ValueError, match="do not fit table_offsets"):
        executable.run(inputs([Piece([5], 300, table[:1])]))
    for wrong in ((12,), (12, 3, 3)):
        with pytest.raises(ValueError, match="each KV group"):
            executable.allocate(wrong)
    with pytest.raises(ValueError, match="at least one block"):
        executable.allocate((12, 0))


def test_block_operations_are_of_one_group() -> None:
    module = with_windows(mini_module(layers=3), 20)
    executable = compiled(module, blocks=6)
    blocks, rng = executable.blocks(), np.random.default_rng(0)

    def content(group: int, block: int) -> bytes:
        return blocks.export_canonical(group, block, 32).tobytes()

    for group in (0, 1):
        for block in (3, 4):
            shape = blocks.export_canonical(group, block, 32).shape
            assert shape[0] == 2 - group
            blocks.import_canonical(group, block, rng.standard_normal(shape).astype(np.float32))
    before = {(group, block): content(group, block) for group in (0, 1) for block in (3, 4)}
    ops = np.array([[COPY, 1, 3, 4], [SCRUB, 0, 4, 4]], np.int32)
    executable.run(replace(inputs([Piece([1, 2], 0, [[1], [2]])]), block_ops=ops))
    assert content(0, 3) == before[0, 3] and not any(content(0, 4))
    assert content(1, 3) == content(1, 4) == before[1, 3] != before[1, 4]
    blocks.copy(1, 4, 5)
    blocks.scrub(1, 3)
    assert content(1, 5) == before[1, 3] and not any(content(1, 3)) and content(0, 3) == before[0, 3]
    for call in (lambda: blocks.copy(2, 3, 4), lambda: blocks.scrub(1, 6), lambda: blocks.export_canonical(-1, 1, 1)):
        with pytest.raises(IndexError):
            call()
