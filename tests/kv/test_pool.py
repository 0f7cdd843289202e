"""BlockPool and BlockTable: conservation of blocks under any sequence of operations, and what is refused."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from pelton.core.config import CacheSection
from pelton.kv.blocks import Blocks
from pelton.kv.group import KVGroup
from pelton.kv.pool import NULL_BLOCK, BlockPool
from pelton.kv.table import BlockTable

BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model: a multiset of held blocks."""

    held = Bundle("held")
    seen: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.model: Counter[int] = Counter()

    @rule(target=held, count=st.integers(0, 5))
    def alloc(self, count: int) -> object:
        free = self.pool.free
        blocks = self.pool.alloc(count)
        if blocks is None:
            assert count > free and self.pool.free == free
            self.seen["refused"] += 1
            return multiple()
        assert len(set(blocks)) == count and not set(blocks) & (+self.model).keys() and NULL_BLOCK not in blocks
        self.model.update(blocks)
        return blocks

    @rule(target=held, blocks=held)
    def share(self, blocks: tuple[int, ...]) -> object:
        self.pool.share(blocks)
        self.model.update(blocks)
        self.seen["shared"] += 1
        return blocks

    @rule(blocks=consumes(held))
    def release(self, blocks: tuple[int, ...]) -> None:
        self.pool.release(blocks)
        self.model.subtract(blocks)
        self.seen["released"] += 1

    @rule(block=st.integers(-1, BLOCKS))
    def misuse(self, block: int) -> None:
        if self.model[block] == 0:
            before = self.pool.free
            for operation in (self.pool.release, self.pool.share):
                with pytest.raises(ValueError, match=f"block {block}"):
                    operation((block,))
            assert self.pool.free == before

    @invariant()
    def adds_up(self) -> None:
        self.pool.check()
        model = +self.model
        assert self.pool.used == len(model) and self.pool.free == BLOCKS - 1 - len(model)
        assert all(self.pool.references(block) == count for block, count in model.items())


def test_any_sequence_of_operations_conserves_blocks() -> None:
    PoolMachine.seen.clear()
    machine = PoolMachine.TestCase
    machine.settings = settings(max_examples=60, stateful_step_count=40)
    machine().runTest()
    assert min(PoolMachine.seen[event] for event in ("refused", "shared", "released")) > 10, PoolMachine.seen


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="reserved"):
        BlockPool(1)


def test_double_free_raises_and_harms_nothing() -> None:
    pool = BlockPool(4)
    blocks = pool.alloc(2)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(ValueError, match="it is free"):
        pool.release(blocks)
    pool.check()
    assert pool.free == 3


def test_check_finds_a_lost_block() -> None:
    pool = BlockPool(4)
    pool.alloc(1)
    pool._free.pop()
    with pytest.raises(AssertionError, match=r"1 used \+ 1 free != 3"):
        pool.check()


def test_freed_blocks_are_given_out_again_first() -> None:
    pool = BlockPool(100)
    first = pool.alloc(3)
    assert first is not None
    pool.release(first)
    assert set(pool.alloc(3) or ()) == set(first)


@pytest.mark.parametrize("caching", [True, False])
def test_table_grows_by_need(caching: bool) -> None:
    pool = BlockPool(10)
    table = BlockTable(Blocks((KVGroup(pool),), 4, CacheSection(enable_prefix_caching=caching)))
    assert table.grow(0) == () and table.needed(1) == 1 and table.needed(9) == 3
    assert table.grow(5) == table.blocks and table.num_blocks == 2 and table.capacity == 8
    assert table.grow(8) == ()
    assert table.grow(9) == (table.blocks[0][2:],)
    assert table.grow(41) is None and table.num_blocks == 3
    table.release()
    assert pool.free == pool.total and table.num_blocks == 0
    pool.check()
