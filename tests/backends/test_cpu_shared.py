"""Whole tiles that several sequences of a step have in common are read once for all of them, and change no bit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.mini import Piece, bits, compiled, inputs, mini_module, random_tokens, run, with_windows
from tests.backends.variants import variant

from pelton.backends.backend import Executable
from pelton.backends.cpu import _native
from pelton.program.module import Module

BLOCK, TILE = 32, 64
LAYERS: dict[str, Callable[[], Module]] = {
    "full": lambda: mini_module(layers=2),
    "windows": lambda: with_windows(mini_module(layers=3), 100, 300),
    "capped": lambda: variant("sandwich"),
    "slopes": lambda: variant("centred"),
}


@dataclass
class Shared:
    """Sequences that begin with the blocks of one of some cached prompts."""

    executable: Executable
    groups: int
    blocks: int = 1  # the next that nobody has

    def take(self, count: int) -> list[int]:
        self.blocks += count
        return list(range(self.blocks - count, self.blocks))

    def prompt(self, length: int, before: Sequence[int] = (), seed: int = 0) -> list[int]:
        """Caches that many tokens behind those of `before`; their blocks, together."""
        table = [*before, *self.take(length // BLOCK)]
        tokens = random_tokens(length, seed=seed)
        for done in range(0, length, 512):
            start = len(before) * BLOCK + done
            self.run([Piece(tokens[done : done + 512], start, [table] * self.groups)])
        return table

    def piece(self, table: Sequence[int], count: int, seed: int) -> Piece:
        """Tokens that come next to a prompt, in blocks of their own."""
        own = self.take(-(-count // BLOCK) + 1)
        return Piece(random_tokens(count, seed=seed), len(table) * BLOCK, [[*table, *own]] * self.groups)

    def run(self, pieces: Sequence[Piece]) -> list[bytes]:
        out = run(self.executable, pieces)
        return [bits(out, row) for row in range(len(pieces))]

    def counted(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Tiles shared and bytes read by attention in a step of these, which must give what each gives alone."""
        alone = [self.run([piece])[0] for piece in pieces]
        before = self.executable.counters()
        assert self.run(pieces) == alone
        after = self.executable.counters()
        return after["shared_tiles"] - before["shared_tiles"], after["read:attend"] - before["read:attend"]


def shared(module: Module, *, exact: bool = False, threads: int = 2) -> Shared:
    executable = compiled(module, exact=exact, threads=threads, tokens=600, blocks=300)
    return Shared(executable, len(module.states))


def following(piece: Piece, seed: int) -> Piece:
    """One token behind the piece."""
    return Piece(random_tokens(1, seed=seed), piece.start + len(piece.tokens), piece.table)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_sharing_changes_no_bit(layer: str, threads: int) -> None:
    step = shared(LAYERS[layer](), threads=threads)
    table = step.prompt(640)
    pieces = [step.piece(table, count, seed=count) for count in (1, 2, 8, 9, 5)]
    assert step.counted(pieces)[0] > 0
    assert step.counted([following(piece, i) for i, piece in enumerate(pieces)])[0] > 0


@pytest.mark.parametrize("isa", _native.instruction_sets())
def test_every_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_ISA", isa)
    for exact in (False, True):
        step = shared(with_windows(mini_module(layers=2), 150), exact=exact)
        table = step.prompt(576)
        assert step.counted([step.piece(table, count, seed=count) for count in (3, 1, 7)])[0] > 0


def test_a_tile_is_read_once_for_all() -> None:
    """Eight sequences over 576 tokens: the nine whole tiles once for each layer and KV head, the rest eight times."""
    module = mini_module(layers=2)
    step, apart = shared(module), shared(module)
    table = step.prompt(576)
    tiles, read = step.counted([step.piece(table, 1, seed=i) for i in range(8)])
    alone, unshared = apart.counted([apart.piece(apart.prompt(576), 1, seed=i) for i in range(8)])
    heads = module.states[next(iter(module.states))].spec.heads
    tile_bytes = TILE * 2 * 16 * 2  # K and V of 16 numbers, in bf16
    assert tiles == 9 * heads * 2 and alone == 0
    assert unshared - read == 7 * tiles * tile_bytes


def test_what_is_shared_when_prompts_branch() -> None:
    """Four sequences have one tile in common, two of them eight more, one comes from elsewhere."""
    module = mini_module(layers=1)
    step = shared(module)
    trunk = step.prompt(64)
    branch, other = step.prompt(512, trunk, seed=1), step.prompt(576, seed=2)
    tables = (branch, trunk, branch, other, trunk)
    pieces = [step.piece(table, 1, seed=i) for i, table in enumerate(tables)]
    heads = module.states[next(iter(module.states))].spec.heads
    # The two that go on share nine tiles and the two others theirs: that saves more than all four sharing tile 0 alone.
    assert step.counted(pieces)[0] == (9 + 1) * heads


def test_a_prompt_of_the_same_step_is_shared() -> None:
    module = mini_module(layers=2)
    step = shared(module)
    tokens, table = random_tokens(256), step.take(8)
    pieces = [Piece(tokens, 0, table), *(step.piece(table, 1, seed=i) for i in range(4))]
    out = step.run(pieces)
    later = [step.run([piece])[0] for piece in pieces]
    assert out == later
    assert step.executable.counters()["shared_tiles"] == 4 * 2 * 2


def test_what_is_not_worth_it_is_left_alone() -> None:
    step = shared(mini_module(layers=2))
    table = step.prompt(128)
    assert step.counted([step.piece(table, 1, seed=i) for i in range(2)])[0] == 0  # two tiles once less
    assert step.counted([step.piece(table, 200, seed=i) for i in range(2)])[0] == 0  # rows enough of their own
    assert step.counted([step.piece(step.prompt(128, seed=i), 1, seed=i) for i in range(3)])[0] == 0


def test_hidden_blocks_may_differ() -> None:
    """Sequences whose window hides the start have the null block there, or whatever was left."""
    module = with_windows(mini_module(layers=2), 130)
    step = shared(module)
    table = step.prompt(512)
    pieces = [step.piece(table, count, seed=count) for count in (2, 40, 1, 5)]
    step.run(pieces)
    after = [following(piece, i) for i, piece in enumerate(pieces)]
    expected = step.run(after)
    hidden = []
    for piece, null in zip(after, (0, 250, 0, 0), strict=True):
        full, windowed = np.array(piece.table).tolist()
        behind = (piece.start - 129) // BLOCK
        hidden.append(replace(piece, table=[full, [null] * behind + windowed[behind:]]))
    before = step.executable.counters()["shared_tiles"]
    assert step.run(hidden) == expected
    assert step.executable.counters()["shared_tiles"] > before


@settings(max_examples=20)
@given(data=st.data())
def test_any_mixture(data: st.DataObject) -> None:
    window = data.draw(st.sampled_from([40, 64, 200, 513]))
    step = shared(with_windows(mini_module(layers=2), window), threads=data.draw(st.integers(1, 3)))
    trunk = step.prompt(data.draw(st.integers(2, 20)) * BLOCK)
    tables = [trunk, *(step.prompt(data.draw(st.integers(1, 8)) * BLOCK, trunk[:cut], seed=cut) for cut in (2, 5))]
    pieces = []
    for i in range(data.draw(st.integers(2, 9))):
        table = data.draw(st.sampled_from(tables))
        pieces.append(step.piece(table[: data.draw(st.integers(0, len(table)))], data.draw(st.integers(1, 40)), seed=i))
    step.counted(pieces)
    step.counted([following(piece, i) for i, piece in enumerate(pieces)])


def test_steps_of_unlike_size_follow_each_other() -> None:
    """Nothing is left over from the step before."""
    step = shared(mini_module(layers=1))
    table = step.prompt(320)
    many = [step.piece(table, 1, seed=i) for i in range(12)]
    few = many[3:5]
    sizes = [step.counted(pieces)[0] for pieces in (many, few, many, [many[0]], few)]
    assert sizes[0] == sizes[1] == sizes[2] == sizes[4] > sizes[3] == 0
    assert inputs(many).tables.shape == (1, 12 * 12)


def test_a_first_block_that_differs_is_not_shared() -> None:
    """Whatever stands behind it is the same."""
    step = shared(mini_module(layers=1))
    table, other = step.prompt(640), step.prompt(640, seed=1)
    mixed = [other[0], *table[1:]]
    pieces = [step.piece(which, 1, seed=i) for i, which in enumerate((table, mixed, table, mixed))]
    step.counted(pieces)


def test_without_room_for_states_everybody_reads_alone() -> None:
    """Rows of many sequences times chunks of a long prefix: more than there is room for."""
    executable = compiled(mini_module(layers=1), tokens=640, rows=80, blocks=420)
    step = Shared(executable, 1)
    table = step.prompt(6144)
    pieces = [step.piece(table, 8, seed=i) for i in range(80)]
    before = executable.counters()["shared_tiles"]
    together = step.run(pieces)
    told = executable.counters()["shared_tiles"] - before
    assert told > 0
    for i in (0, 7, 40, 78, 79):
        assert step.run([pieces[i]]) == [together[i]], i


@pytest.mark.parametrize("exact", [False, True])
def test_chunks_meet_in_their_order(exact: bool) -> None:
    """Five chunks: by one thread one after the other, by several side by side."""
    found = []
    for threads in (1, 4):
        step = shared(mini_module(layers=2), exact=exact, threads=threads)
        table = step.prompt(2304)
        found.append(step.run([step.piece(table, count, seed=count) for count in (1, 3)]))
        found.append(step.run([step.piece(table, 2, seed=9)]))
    assert found[:2] == found[2:]
