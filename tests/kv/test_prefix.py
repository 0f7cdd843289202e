"""PrefixTree, Blocks and tables: exact matching, LRU leaves, the cap, and random use against a model of paths."""

import gc
from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pelton.core.config import CacheSection
from pelton.core.plan import Lookup
from pelton.kv.blocks import Blocks
from pelton.kv.group import KVGroup
from pelton.kv.misses import explain
from pelton.kv.node import Ghosts, Node
from pelton.kv.pool import NULL_BLOCK, BlockPool
from pelton.kv.prefix import PrefixTree
from pelton.kv.table import BlockTable

SIZE = 2


class Letters:
    """Keys of a text of whole blocks, each letter a token."""

    def __init__(self, text: str, namespace: str = "") -> None:
        self.text = text
        self.namespace = namespace.encode()

    def key(self, block: int) -> bytes:
        return self.text[block * SIZE : (block + 1) * SIZE].encode("utf-32-le")

    def part(self, block: int) -> bytes:
        return self.text[block * SIZE : (block + 1) * SIZE][:-1].encode("utf-32-le")


def store(blocks: int, most: int | None = None) -> tuple[Blocks, PrefixTree]:
    source = Blocks((KVGroup(BlockPool(blocks + 1)),), SIZE, CacheSection(prefix_cache_tokens=most))
    assert source.tree is not None
    return source, source.tree


def own(table: BlockTable) -> tuple[int, ...]:
    """Its blocks in the only group."""
    return table.blocks[0]


def begin(source: Blocks, text: str, namespace: str = "") -> BlockTable | None:
    """What the scheduler does with a request: match, share, grow, enter. None: too few blocks."""
    assert source.tree is not None
    keys = Letters(text, namespace)
    table = BlockTable(source, keys.namespace)
    found = (tuple(node.blocks[0] for node in source.tree.match(keys, len(text) // SIZE)),)
    source.share(found)
    table.adopt(found)
    if table.grow(len(text)) is None:
        table.release()
        return None
    table.enter(keys, len(text))
    return table


def cached(source: Blocks, text: str, namespace: str = "") -> int:
    assert source.tree is not None
    return len(source.tree.match(Letters(text, namespace), len(text) // SIZE))


def test_what_begins_alike_is_found_block_by_block() -> None:
    source, _ = store(20)
    table = begin(source, "aabbcc")
    assert table is not None
    assert [cached(source, text) for text in ("aabbcc", "aabbxx", "aabxcc", "bbcc", "aabbccdd", "aa")] == [
        3,
        2,
        1,
        0,
        3,
        1,
    ]
    other = begin(source, "aabbxx")
    assert other is not None and own(other)[:2] == own(table)[:2] and own(other)[2] != own(table)[2]
    assert source.held == (4,)


def test_the_longest_unused_leaf_goes_first() -> None:
    source, tree = store(6)
    for text in ("aabb", "aacc", "dd"):
        table = begin(source, text)
        assert table is not None
        table.release()
    assert tree.num_unused(0) == 4 and source.available == (6,)
    table = begin(source, "aabb")  # used again: cc and dd are older now
    assert table is not None
    table.release()
    for text, left in (("cc", ["aabb", "dd"]), ("dd", ["aabb"]), ("bb", ["aa"]), ("aa", [])):
        tree.evict(0)
        assert [cached(source, path) for path in left] == [len(path) // SIZE for path in left], text
    assert tree.num_blocks == 0 and tree.evictions == 4
    source.check()


def test_a_block_in_use_is_never_evicted() -> None:
    source, _ = store(4)
    table = begin(source, "aabbcc")
    assert table is not None
    assert source.alloc(2) is None and cached(source, "aabbcc") == 3
    table.release()
    assert len((source.alloc(2) or ((),))[0]) == 2
    assert cached(source, "aabbcc") == 2, "the tail goes first"
    source.check()


def test_an_equal_block_stays_private_and_so_do_those_behind_it() -> None:
    source, tree = store(9)
    first, second = BlockTable(source), BlockTable(source)
    for table in (first, second):
        table.grow(4)
    assert len(first.enter(Letters("aabb"), 4)) == 2
    assert second.enter(Letters("aabb"), 4) == [] and second.node is None and not second.fills(99)
    assert tree.num_blocks == 2
    second.release()
    source.check()
    assert source.available == (7,) and tree.num_unused(0) == 0


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (1, 0), (4, 2), (5, 2), (100, 3)])
def test_the_cap_is_of_whole_blocks_nobody_uses(most: int, kept: int) -> None:
    source, tree = store(9, most)
    table = begin(source, "aabbcc")
    assert table is not None and cached(source, "aabbcc") == 3, "what is in use is beyond the cap"
    table.release()
    assert tree.num_unused(0) == kept == cached(source, "aabbcc")
    assert tree.evictions == 3 - kept


def test_reset_drops_what_nobody_uses() -> None:
    source, tree = store(9)
    used, unused = begin(source, "aabb"), begin(source, "aacc")
    assert used is not None and unused is not None
    unused.release()
    tree.reset()
    assert cached(source, "aabb") == 2 and cached(source, "aacc") == 1
    assert tree.evictions == 0, "a reset is no lack of blocks"
    source.check()


def test_bad_blocks_leave_the_tree_with_all_behind_them_and_are_scrubbed_once() -> None:
    source, tree = store(6)
    first, second = begin(source, "aabb"), begin(source, "aabbcc")
    assert first is not None and second is not None
    source.poison((0, block) for block in own(first)[1:])
    assert cached(source, "aabbcc") == 1 and tree.num_blocks == 1
    second.grow(8)
    assert second.enter(Letters("aabbccdd"), 8) == [], "behind a block that is gone nothing enters"
    bad = {(0, block) for block in (*own(first)[1:], own(second)[2])}
    first.release()
    second.release()
    source.check()
    assert source.available == (6,)
    blocks = source.alloc(6)
    assert blocks is not None and sorted(source.take_scrubs()) == sorted(bad) and source.take_scrubs() == []
    source.release(blocks)
    source.alloc(6)
    assert source.take_scrubs() == []


def test_namespaces_share_nothing_and_go_with_their_last_block() -> None:
    source, tree = store(9)
    one, other = begin(source, "aabb", "one"), begin(source, "aabb", "other")
    assert one is not None and other is not None and not set(own(one)) & set(own(other))
    assert cached(source, "aabb", "one") == cached(source, "aabb", "other") == 2 and cached(source, "aabb") == 0
    assert sorted(root.key for root in tree.roots()) == [b"one", b"other"]
    one.release()
    tree.reset()
    assert [root.key for root in tree.roots()] == [b"other"] and len(tree._roots) == 2
    assert one.grow(2) is not None and one.enter(Letters("cc", "one"), 2), "its root waits for what it will enter"
    assert cached(source, "cc", "one") == 1
    one.release()
    other.release()
    tree.reset()
    del one, other
    gc.collect()
    assert len(tree._roots) == 0
    source.check()


@pytest.mark.parametrize(("part", "found"), [
    ("aab", [(3, "aabx"), (3, "aaby"), (2, "aaxx"), (1, "abbb"), (0, "caaa")]),
    ("aabz", [(3, "aaby"), (3, "aabx"), (2, "aaxx"), (1, "abbb"), (0, "caaa")]),
    ("", [(0, "aabx"), (0, "aaby"), (0, "aaxx"), (0, "abbb"), (0, "caaa")]),
    ("zz", [(0, "caaa"), (0, "abbb"), (0, "aaxx"), (0, "aaby"), (0, "aabx")]),
    ("ca", [(2, "caaa"), (0, "abbb"), (0, "aaxx"), (0, "aaby"), (0, "aabx")]),
])  # fmt: skip
def test_children_that_begin_alike_come_first(part: str, found: list[tuple[int, str]]) -> None:
    root = Node(b"", 1, None)
    for key in ("caaa", "aaxx", "aabx", "abbb", "aaby"):
        root.add(key.encode())
    assert [(shared, node.key.decode()) for shared, node in root.alike(part.encode())] == found
    root.check()


def test_digests_tell_paths_and_namespaces_apart_and_are_the_same_everywhere() -> None:
    paths = [Node(name, 1, None).add(first).add(second) for name, first, second in (
        (b"", b"aa", b"bb"), (b"", b"bb", b"aa"), (b"x", b"aa", b"bb"), (b"", b"aa", b"ba"),
    )]  # fmt: skip
    assert len({node.digest for node in paths}) == 4
    assert Node(b"", 1, None).add(b"aa").add(b"bb").digest == paths[0].digest
    deep = Node(b"", 1, None)
    for _ in range(5000):
        deep = deep.add(b"aa")
    assert len(deep.digest) == 32, "no recursion"


def test_ghosts_are_bounded_and_the_oldest_goes() -> None:
    ghosts = Ghosts(3)
    for digest in (b"1", b"2", b"3", b"1", b"4"):
        ghosts.add(digest)
    assert [digest in ghosts for digest in (b"1", b"2", b"3", b"4")] == [True, False, True, True] and len(ghosts) == 3


def look(source: Blocks, text: str, namespace: str = "") -> Lookup:
    """Why no more of the text is found."""
    assert source.tree is not None
    keys, most = Letters(text, namespace), max(0, len(text) - 1) // SIZE
    found = source.tree.match(keys, most)
    return explain(source.tree, keys, found, most, len(found) * SIZE, SIZE)


def test_each_miss_has_its_reason() -> None:
    source, tree = store(20)
    for text, namespace in (("aabbcc", ""), ("aabbdd", ""), ("eeff", "other")):
        table = begin(source, text, namespace)
        assert table is not None
        table.release()
    assert look(source, "aabbccx") == Lookup("complete", 6)
    assert look(source, "aabbcx") == Lookup("complete", 4), "the rest is no whole block"
    assert look(source, "aabbcxx") == Lookup("diverged", 5, ord("x"), ord("c"))
    assert look(source, "axbbccx") == Lookup("diverged", 1, ord("x"), ord("a"))
    assert look(source, "aabbccxxx") == Lookup("unseen", 6)
    assert look(source, "xxbbcc") == Lookup("unseen", 0)
    assert look(source, "eeffx") == Lookup("namespace") and look(source, "eeffx", "other") == Lookup("complete", 4)
    assert look(source, "a") == Lookup("too_short")
    tree.evict(0)
    assert look(source, "aabbccx") == Lookup("evicted", 4)
    tree.reset()
    assert look(source, "aabbccx") == Lookup("unseen", 0)


def test_check_finds_what_is_wrong() -> None:
    source, tree = store(6)
    table = begin(source, "aabb")
    assert table is not None
    table.release()
    tree._unused[0].move_to_end(tree.match(Letters("aabb"), 2)[1].blocks[0])
    with pytest.raises(AssertionError, match="outlives"):
        tree.check()


def windows(blocks: int, *sizes: int | None) -> tuple[Blocks, PrefixTree]:
    """A store of groups with these windows, each of so many blocks."""
    source = Blocks([KVGroup(BlockPool(blocks + 1), size) for size in sizes], SIZE, CacheSection())
    assert source.tree is not None
    return source, source.tree


def filled(source: Blocks, text: str, computed: int) -> BlockTable:
    """A table whose first `computed` tokens are computed, with blocks for the whole text; all full ones in the tree."""
    table = BlockTable(source)
    assert table.grow(len(text)) is not None
    table.enter(Letters(text), len(text))
    table.slide(computed)
    return table


def test_what_is_behind_the_window_is_given_back_and_the_rest_is_held() -> None:
    source, _ = windows(9, None, 3)
    table = filled(source, "aabbccdd", 8)
    full, seen = table.blocks
    assert NULL_BLOCK not in full and seen[:3] == (NULL_BLOCK,) * 3 and seen[3] != NULL_BLOCK
    assert source.held == (4, 1)
    table.slide(8)
    assert source.held == (4, 1) and table.capacity == 8 and table.wanted(12, 2) == (2, 2)
    table.release()
    assert source.held == (0, 0)
    source.check()


@pytest.mark.parametrize(("lost", "reach"), [(0, 4), (1, 4), (2, 4), (3, 3)])
def test_a_hit_needs_of_a_window_only_what_the_next_token_sees(lost: int, reach: int) -> None:
    """With a window of 3 (blocks of 2) a request that begins at 8 sees the indices 6 and 7, one that begins at 6 the
    indices 4 and 5.
    """
    source, tree = windows(9, None, 3)
    filled(source, "aabbccdd", 8).release()
    node = tree.match(Letters("aabbccdd"), 4)[lost]
    tree._unused[1].move_to_end(node.blocks[1], last=False)
    tree.evict(1)
    assert node.blocks[1] == NULL_BLOCK and node.blocks[0] != NULL_BLOCK
    assert cached(source, "aabbccdd") == reach
    source.check()


def test_a_block_that_is_missing_in_a_group_is_filled_in_by_who_computes_it_again() -> None:
    source, tree = windows(20, None, 3)
    filled(source, "aabbccdd", 8).release()
    for _ in range(4):
        tree.evict(1)
    assert cached(source, "aabbccdd") == 0
    filled(source, "aabbccdd", 8).release()
    assert cached(source, "aabbccdd") == 4 and tree.num_unused(0) == 4, "equal blocks of the other group stay private"
    source.check()


def test_nodes_without_a_block_stay_as_long_as_they_lead_to_one() -> None:
    source, tree = windows(9, 3)
    filled(source, "aabbccdd", 8).release()
    for left in (3, 2, 1):
        tree.evict(0)
        assert tree.num_blocks == left and cached(source, "aabbccdd") == 4
    tree.evict(0)
    assert tree.num_blocks == 0 and not list(tree.roots())
    source.check()


class TreeMachine(RuleBasedStateMachine):
    """Tables with texts come and go; the model knows which block must hold which path."""

    seen: Counter[str] = Counter()

    @initialize(most=st.sampled_from((None, None, 0, 6)))
    def begin(self, most: int | None) -> None:
        self.source, self.tree = store(10, most)
        self.held: list[tuple[str, str, BlockTable]] = []
        self.paths: dict[int, str] = {}

    @rule(text=st.text("ab", max_size=10), namespace=st.sampled_from(("", "", "x")))
    def come(self, text: str, namespace: str) -> None:
        text = text[: len(text) // SIZE * SIZE]
        found = cached(self.source, text, namespace)
        evictions = self.tree.evictions
        told = look(self.source, text, namespace)
        assert (told.kind in ("complete", "too_short")) == (found >= max(0, len(text) - 1) // SIZE)
        self.seen[told.kind] += 1
        table = begin(self.source, text, namespace)
        if table is None:
            self.seen["refused"] += 1
            return
        for place, block in enumerate(own(table)):
            path = f"{namespace}:{text[: (place + 1) * SIZE]}"
            if place < found:
                assert self.paths[block] == path, "a hit is the block of exactly this path"
            self.paths[block] = path
        self.held.append((namespace, text, table))
        self.seen["hit"] += found > 0
        self.seen["evict"] += self.tree.evictions > evictions

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        _, _, table = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        table.release()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), chance=st.integers(0, 5))
    def spoil(self, data: st.DataObject, chance: int) -> None:
        if chance != 5:
            return
        namespace, text, table = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        place = data.draw(st.integers(0, max(0, table.num_blocks - 1)))
        self.source.poison((0, block) for block in own(table)[place:])
        if table.num_blocks > place and table.depth > place:
            assert cached(self.source, text, namespace) <= place or self.tree.at(0, own(table)[place]) is None
            self.seen["spoil"] += 1

    @rule(chance=st.integers(0, 5))
    def reset(self, chance: int) -> None:
        if chance == 5:
            self.tree.reset()
            assert self.tree.num_unused(0) == 0

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "source"):
            return
        self.source.check()
        in_use = {block for _, _, table in self.held for block in own(table)}
        assert self.source.held == (len(in_use),)
        for namespace, text, table in self.held:
            assert [self.paths[block] for block in own(table)] == [
                f"{namespace}:{text[: (place + 1) * SIZE]}" for place in range(table.num_blocks)
            ], "a block in use was handed out"
            whole = cached(self.source, text, namespace) == table.num_blocks
            assert table.node is None or not table.node.attached or whole


def test_any_use_of_the_tree_keeps_paths_and_books() -> None:
    TreeMachine.seen.clear()
    machine = TreeMachine.TestCase
    machine.settings = settings(max_examples=150, stateful_step_count=40)
    machine().runTest()
    wanted = ("refused", "hit", "evict", "spoil", "complete", "diverged", "evicted", "namespace", "too_short", "unseen")
    assert all(TreeMachine.seen[event] for event in wanted), TreeMachine.seen


@pytest.mark.slow
def test_a_million_operations_leak_nothing() -> None:
    """Tables come, grow, are poisoned and go at random over a pool that is always short; every block comes back."""
    rng = Random(7)
    source, tree = store(64)
    held: list[BlockTable] = []
    for number in range(1_000_000):
        if held and (len(held) > 12 or rng.random() < 0.45):
            table = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.01:
                source.poison((0, block) for block in own(table)[-1:])
            table.release()
        else:
            text = "".join(rng.choice("ab") for _ in range(2 * rng.randint(0, 8)))
            made = begin(source, text, rng.choice(("", "x")))
            if made is not None:
                held.append(made)
        if number % 10_000 == 0:
            source.check()
            source.take_scrubs()
    for table in held:
        table.release()
    source.check()
    tree.reset()
    assert source.available == (64,) == tuple(group.pool.free for group in source.groups) and tree.evictions > 1000
