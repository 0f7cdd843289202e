"""What caches of every size find, against a cache that is played through."""

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.cli.commands.simulate.shown import cache_sizes, reuse_record
from pelton.measure.simulate.cache_sizes import Reuse, reuse

SIZE = 2


def played(prompts: Sequence[Sequence[int]], blocks: int) -> int:
    """Tokens found by a cache of so many blocks that evicts what was used longest ago, of a prompt its end first."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    found = 0
    for prompt in prompts:
        path = [tuple(prompt[:end]) for end in range(SIZE, len(prompt) + 1, SIZE)]
        usable = path[: (len(prompt) - 1) // SIZE]
        found += SIZE * next((n for n, node in enumerate(usable) if node not in cache), len(usable))
        for node in reversed(path):
            cache[node] = None
            cache.move_to_end(node)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return found


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=12))
def test_each_size_finds_what_such_a_cache_finds(prompts: list[list[int]]) -> None:
    found = reuse(prompts, SIZE)
    assert found.tokens == sum(map(len, prompts)) and found.prompts == len(prompts)
    for blocks in range(12):
        assert found.found(blocks) == played(prompts, blocks), blocks
    assert found.found() == found.found(found.enough) == played(prompts, 10**6)
    assert not found.enough or found.found(found.enough - 1) < found.found()


def test_a_repeated_prompt_computes_its_last_token() -> None:
    """Of four tokens only the first block can be found again."""
    found = reuse([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]], SIZE)
    assert found.found() == 2 + 4 and found.blocks == 2 and found.rate() == 6 / 13
    assert reuse([], SIZE).rate() == 0.0


def test_sizes_end_where_nothing_more_is_found() -> None:
    block = 1 << 20
    found = Reuse(3, 10_000, 900, tuple(range(1, 701)))
    sizes = cache_sizes(found, block)
    assert sizes[-1] == 700 == found.enough and sizes == sorted(set(sizes)) and 512 in sizes
    rows = reuse_record(found, block, 0.001)
    assert rows[-1]["blocks"] is None and rows[-1]["found_tokens"] == 700 * 32
    assert [row["blocks"] for row in rows[:-1]] == sizes
    assert rows[-2]["hit_rate"] == rows[-1]["hit_rate"]
    worth = [row["seconds_per_further_gib"] for row in rows[:-1]]
    assert worth == pytest.approx([32 * 1024 * 0.001] * len(worth))
    assert cache_sizes(Reuse(1, 10, 1, ()), block) == [1]
