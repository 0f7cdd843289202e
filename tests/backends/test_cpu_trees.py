"""Rows of a step that form a tree: each gives the bits of its path run alone (docs/numerics.md, section 7)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.mini import Piece, compiled, inputs, mini_module, random_tokens, with_windows
from tests.backends.variants import variant
from tests.oracle.driver import sampling

from pelton.backends.backend import MAX_TREE, CompileOptions, Executable, StepInputs
from pelton.backends.cpu import _native
from pelton.backends.reference.backend import ReferenceBackend
from pelton.program.module import Module

TREE, PATH = range(1, 40), range(50, 89)  # blocks of the tree's sequence and of the one that runs paths
LAYERS = {
    "full": lambda: mini_module(layers=2),
    "windows": lambda: with_windows(mini_module(layers=3), 20, 75),
    "capped": lambda: variant("sandwich"),
    "slopes": lambda: variant("centred"),
}


def depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def every_row(step: StepInputs, parents: Sequence[int] | None = None) -> StepInputs:
    """With logits of all tokens; parents of the step's last sequence, the others being chains."""
    tokens = len(step.tokens)
    wanted = replace(step, logit_rows=np.arange(tokens, dtype=np.int32), sampling=sampling(tokens))
    if parents is None:
        return wanted
    chains = [np.arange(count) - 1 for count in step.counts[:-1]]
    positions = step.positions.copy()
    positions[tokens - len(parents) :] = step.starts[-1] + np.array(depths(parents))
    return replace(wanted, positions=positions, parents=np.concatenate([*chains, parents]).astype(np.int32))


class Grown:
    """An executable in which two sequences of the same `start` tokens are cached."""

    def __init__(self, executable: Executable, module: Module, start: int) -> None:
        self.executable, self.groups, self.start = executable, len(module.states), start
        for table in (TREE, PATH) if start else ():
            self.run([], Piece(random_tokens(start), 0, [table] * self.groups))

    def run(self, others: list[Piece], piece: Piece, parents: Sequence[int] | None = None) -> np.ndarray:
        """Logits of the piece's tokens."""
        out = self.executable.run(every_row(inputs([*others, piece]), parents))
        assert out.logits is not None
        return out.logits[len(out.logits) - len(piece.tokens) :]

    def tree(self, tokens: list[int], parents: Sequence[int], others: Sequence[Piece] = ()) -> np.ndarray:
        return self.run(list(others), Piece(tokens, self.start, [TREE] * self.groups), parents)

    def path(self, tokens: list[int]) -> np.ndarray:
        return self.run([], Piece(tokens, self.start, [PATH] * self.groups))


def check(grown: Grown, parents: Sequence[int], others: Sequence[Piece] = ()) -> None:
    tokens = random_tokens(len(parents), seed=5)
    together = grown.tree(tokens, parents, others)
    assert np.isfinite(together).all()
    for node in range(len(parents)):
        alone = grown.path([tokens[i] for i in path_to(node, parents)])
        assert together[node].tobytes() == alone[-1].tobytes(), (node, path_to(node, parents))


def random_tree(nodes: int, rng: np.random.Generator, depth: int = 8) -> list[int]:
    parents: list[int] = []
    for node in range(nodes):
        parents.append(int(rng.integers(max(-1, node - depth), node)))
    return parents


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("start", [0, 1, 31, 63, 64, 100, 505, 511])
def test_a_node_is_its_path(layer: str, start: int) -> None:
    module = LAYERS[layer]()
    grown = Grown(compiled(module, rows=600), module, start)
    check(grown, random_tree(14, np.random.default_rng(start)))


@settings(max_examples=12)
@given(data=st.data())
def test_random_trees(data: st.DataObject) -> None:
    window = data.draw(st.sampled_from([5, 33, 64, 200]))
    module = with_windows(mini_module(layers=2), window)
    executable = compiled(module, rows=600, exact=data.draw(st.booleans()), threads=data.draw(st.integers(1, 3)))
    start = data.draw(st.integers(0, 130))
    nodes = data.draw(st.integers(2, 40))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(nodes)]
    check(Grown(executable, module, start), parents)


@pytest.mark.parametrize("isa", _native.instruction_sets())
def test_every_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_ISA", isa)
    module = with_windows(mini_module(layers=2), 40)
    for exact in (False, True):
        grown = Grown(compiled(module, rows=600, exact=exact), module, 90)
        check(grown, random_tree(12, np.random.default_rng(3)))


def test_a_large_tree_among_others() -> None:
    """More rows than go together, deep enough to cross tiles and a chunk; some neighbours share its prefix."""
    module = mini_module(layers=2)
    grown = Grown(compiled(module, rows=600, blocks=200), module, 440)
    parents = [*range(-1, 79), *random_tree(MAX_TREE - 80, np.random.default_rng(1), depth=40)]
    parents = parents[:80] + [parent + 40 for parent in parents[80:]]
    tokens = random_tokens(len(parents), seed=5)
    alone = grown.tree(tokens, parents)
    others = [
        Piece([3], 96, [*TREE[:3], 111]),
        Piece(random_tokens(40, seed=2), 0, range(100, 102)),
        Piece([9, 8], 416, [*TREE[:13], 110]),
    ]
    assert grown.tree(tokens, parents, others).tobytes() == alone.tobytes()
    for node in (0, 79, 80, 120, 200, MAX_TREE - 1):
        path = grown.path([tokens[i] for i in path_to(node, parents)])
        assert alone[node].tobytes() == path[-1].tobytes(), node


def test_a_chain_given_as_parents_changes_nothing() -> None:
    module = mini_module(layers=2)
    grown = Grown(compiled(module, rows=600), module, 70)
    tokens = random_tokens(300, seed=1)
    assert grown.tree(tokens, range(-1, 299)).tobytes() == grown.path(tokens).tobytes()


@pytest.mark.parametrize("layer", LAYERS)
def test_the_reference_sees_the_same(layer: str) -> None:
    module = LAYERS[layer]()
    oracle = ReferenceBackend().compile(module, CompileOptions(600, 600, exact=True))
    oracle.allocate((100,) * len(module.states))
    parents = random_tree(14, np.random.default_rng(2))
    tokens = random_tokens(len(parents), seed=5)
    theirs = Grown(oracle, module, 100).tree(tokens, parents)
    ours = Grown(compiled(module, rows=600, exact=True), module, 100)
    np.testing.assert_allclose(ours.tree(tokens, parents), theirs, atol=2e-4, rtol=1e-3)
    assert np.abs(ours.tree(tokens, range(-1, 13)) - theirs).max() > 0.01


@pytest.mark.parametrize(
    ("parents", "what"),
    [
        ([0], "before its child"),
        ([-2], "before its child"),
        ([-1, 1], "before its child"),
        ([-1] * (MAX_TREE + 1), "more than 256"),
        ([], "parents"),
    ],
)
def test_what_is_no_tree_is_refused(parents: list[int], what: str) -> None:
    executable = compiled(mini_module(layers=1), rows=600)
    step = every_row(inputs([Piece([1] * max(1, len(parents)), 0, TREE)]))
    with pytest.raises(ValueError, match=what):
        executable.run(replace(step, parents=np.array(parents, np.int32)))


@pytest.mark.parametrize("parents", [[-1, 0, 0], [-1, -1], [-1, 0, 0, 2, 2], [-1, 0, 1, 1]])
def test_the_smallest_trees(parents: list[int]) -> None:
    """A row next to its sibling is enough to branch."""
    module = mini_module(layers=2)
    check(Grown(compiled(module, rows=600), module, 40), parents)


def test_a_tree_alone_shares_with_nobody() -> None:
    """Its rows read its prefix once among themselves, but what is counted is what several sequences have in common."""
    module = mini_module(layers=2)
    grown = Grown(compiled(module, rows=600), module, 512)
    before = grown.executable.counters()["shared_tiles"]
    grown.tree(random_tokens(6), [-1, 0, 0, 1, 1, 2])
    assert grown.executable.counters()["shared_tiles"] == before
