"""A context far beyond 32k: the same bits whole and in pieces, alone and shared, and nothing overflows."""

import numpy as np
import pytest
from tests.backends.mini import Piece, bits, compiled, mini_module, random_tokens, run

LENGTH, BLOCK = 40_000, 32


@pytest.mark.slow
def test_forty_thousand_tokens() -> None:
    executable = compiled(mini_module(layers=1), tokens=2048, blocks=2 * LENGTH // BLOCK + 40)
    tokens, blocks = random_tokens(LENGTH), LENGTH // BLOCK
    table = list(range(1, 1 + blocks))
    other = (1 + blocks + np.random.default_rng(0).permutation(blocks)).tolist()
    for place, size in ((table, 2048), (other, 1999)):
        for start in range(0, LENGTH, size):
            run(executable, [Piece(tokens[start : start + size], start, place)])
    own = 2 * blocks + 1
    alone = [bits(run(executable, [Piece([9], LENGTH, [*which, own])]), 0) for which in (table, other)]
    assert alone[0] == alone[1]
    before = executable.counters()["shared_tiles"]
    together = run(executable, [Piece([9], LENGTH, [*table, own + i]) for i in range(3)])
    assert [bits(together, row) for row in range(3)] == alone[:1] * 3
    assert executable.counters()["shared_tiles"] - before == LENGTH // 64 * 2
