"""What caches of every size find, against a cache that is played through."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.simulate.shown import cache_sizes, reuse_record
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM
from pelton.measure.simulate.cache_sizes import Reuse, reuse
from pelton.schedule.sharing import least_part

SIZE, WIDE = 2, 16  # tokens of a block


def played(prompts: Sequence[Sequence[int]], blocks: int, size: int, *, parts: bool) -> int:
    """Tokens found by a cache of so many blocks that evicts what was used longest ago, of a prompt its end first."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    found = 0
    for prompt in prompts:
        path = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        usable = path[: (len(prompt) - 1) // size]
        whole = size * next((n for n, node in enumerate(usable) if node not in cache), len(usable))
        found += whole
        if parts:
            found += copied(prompt, whole, size, cache)
            path += [tuple(prompt)] * (len(prompt) % size > 0)
        for node in reversed(path):
            cache[node] = None
            cache.move_to_end(node)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return found


def copied(prompt: Sequence[int], whole: int, size: int, cache: Iterable[tuple[int, ...]]) -> int:
    """Tokens of the block behind `whole` ones that stand in one of the cache behind the same ones."""
    wanted, best = tuple(prompt[whole:-1][:size]), 0
    for node in cache:
        if len(node) > whole and -(-len(node) // size) == whole // size + 1 and node[:whole] == tuple(prompt[:whole]):
            pairs = zip(node[whole:], wanted, strict=False)
            shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            best = max(best, shared)
    return best if best >= least_part(size) or best == len(wanted) else 0


@pytest.mark.parametrize(("size", "parts"), [(SIZE, False), (SIZE, True), (WIDE, True)])
def test_each_size_finds_what_such_a_cache_finds(size: int, parts: bool) -> None:
    """Blocks of WIDE tokens are copied from the second one in common on."""
    begun_within = 0

    @given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=12))
    def each(prompts: list[list[int]]) -> None:
        nonlocal begun_within
        prompts = [[token for token in prompt for _ in range(size // SIZE)] for prompt in prompts]
        found = reuse(prompts, size, parts=parts)
        assert found.tokens == sum(map(len, prompts)) and found.prompts == len(prompts)
        for blocks in range(12):
            assert found.found(blocks) == played(prompts, blocks, size, parts=parts), blocks
        assert found.found() == found.found(found.enough) == played(prompts, 10**6, size, parts=parts)
        assert not found.enough or found.found(found.enough - 1) < found.found()
        begun_within += found.found() % size > 0

    each()
    assert (begun_within > 0) == parts


def test_a_repeated_prompt_computes_its_last_token() -> None:
    """Of four tokens only the first block can be found again, or three in all."""
    prompts = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    found = reuse(prompts, SIZE, parts=False)
    assert found.found() == 2 + 4 and found.blocks == 2 and found.rate() == 6 / 13
    found = reuse(prompts, SIZE)
    assert found.found() == 3 + 4 and found.blocks == 3
    assert reuse([], SIZE).rate() == 0.0


def test_the_engine_finds_as_much(tmp_path: Path) -> None:
    """Prompts one after the other, with answers of one token, which leave nothing behind them to be found."""
    rng = np.random.default_rng(3)
    stem = [int(token) for token in rng.integers(3, 90, 70)]
    prompts = [stem[:31], stem[:34], stem[:50] + [7] * 20, stem, stem[:40] + [9] * 60, stem, stem[:3] + [8] * 40]
    with LLM(str(tiny_talker(tmp_path)), max_num_seqs=1, num_blocks=200) as llm:
        for prompt in prompts:
            llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=1), use_tqdm=False)
        cached = llm.get_metrics()["prefix_hits_total"]
    assert cached == reuse(prompts).found() > reuse(prompts, parts=False).found() > 0


def test_sizes_end_where_nothing_more_is_found() -> None:
    block = 1 << 20
    found = Reuse(3, 10_000, 900, tuple(range(1, 701)), tuple(range(32, 701 * 32, 32)))
    sizes = cache_sizes(found, block)
    assert sizes[-1] == 700 == found.enough and sizes == sorted(set(sizes)) and 512 in sizes
    rows = reuse_record(found, block, 0.001)
    assert rows[-1]["blocks"] is None and rows[-1]["found_tokens"] == 700 * 32
    assert [row["blocks"] for row in rows[:-1]] == sizes
    assert rows[-2]["hit_rate"] == rows[-1]["hit_rate"]
    worth = [row["seconds_per_further_gib"] for row in rows[:-1]]
    assert worth == pytest.approx([32 * 1024 * 0.001] * len(worth))
    assert cache_sizes(Reuse(1, 10, 1, (), ()), block) == [1]
