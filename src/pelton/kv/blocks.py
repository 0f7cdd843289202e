"""Blocks: the pools of all KV groups and, where prefixes are shared, the tree over them. Knows no request.

Invariant: a block somebody holds is never handed out again, one that only the tree keeps is as good as free.
"""

from collections.abc import Iterable, Sequence

from pelton.core.config import CacheSection
from pelton.kv.group import Held, KVGroup
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import PrefixTree


class Blocks:
    """Hands blocks out, evicting cached ones where too few are free, and takes them back. `tree` None: no sharing."""

    def __init__(self, groups: Sequence[KVGroup], block_size: int, cache: CacheSection) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self.tree: PrefixTree | None = None
        if cache.enable_prefix_caching:
            most = cache.prefix_cache_tokens
            self.tree = PrefixTree(self.groups, block_size, None if most is None else most // block_size)
        self._poisoned: set[tuple[int, int]] = set()
        self._to_scrub: list[tuple[int, int]] = []

    @property
    def total(self) -> tuple[int, ...]:
        """Blocks of each group."""
        return tuple(group.pool.total for group in self.groups)

    @property
    def available(self) -> tuple[int, ...]:
        """Blocks of each group that can be handed out now: the free ones, and the cached ones that nobody uses."""
        tree = self.tree
        return tuple(
            group.pool.free + (tree.num_unused(number) if tree is not None else 0)
            for number, group in enumerate(self.groups)
        )

    @property
    def held(self) -> tuple[int, ...]:
        """Blocks of each group that somebody uses."""
        return tuple(total - available for total, available in zip(self.total, self.available, strict=True))

    def needed(self, tokens: int) -> int:
        """Blocks that so many tokens fill or begin."""
        return -(-tokens // self.block_size)

    def alloc(self, count: int | Sequence[int], *, overwritten: bool = False) -> Held | None:
        """`count` blocks of each group (or so many of this and so many of that one) with one reference each, or None
        (nothing changed) where fewer are available. `overwritten`: every byte of them is, at once.
        """
        counts = [count] * len(self.groups) if isinstance(count, int) else count
        if any(available < wanted for available, wanted in zip(self.available, counts, strict=True)):
            return None
        added = []
        for number, (group, wanted) in enumerate(zip(self.groups, counts, strict=True)):
            for _ in range(wanted - group.pool.free):
                assert self.tree is not None
                self.tree.evict(number)
            blocks = group.pool.alloc(wanted)
            assert blocks is not None
            added.append(blocks)
        if self._poisoned:
            fresh = {(number, block) for number, blocks in enumerate(added) for block in blocks}
            scrub = self._poisoned & fresh
            self._poisoned -= scrub
            if not overwritten:
                self._to_scrub += sorted(scrub)
        return tuple(added)

    def share(self, held: Held) -> None:
        """One more reference on each of these blocks."""
        for number, blocks in enumerate(held):
            real = [block for block in blocks if block != NULL_BLOCK]
            self.groups[number].pool.share(real)
            if self.tree is not None:
                for block in real:
                    self.tree.taken(number, block)

    def release(self, held: Held) -> None:
        """One reference less on each block of a table (in the table's order: the last is given back first)."""
        for number, blocks in enumerate(held):
            self.give_back(number, blocks[::-1])

    def give_back(self, group: int, blocks: Iterable[int], *, cold: bool = False) -> None:
        """One reference less on each of a group's blocks, in this order; `cold`: see PrefixTree.given_back."""
        tree, drop = self.tree, self.groups[group].pool.drop
        for block in blocks:
            if block != NULL_BLOCK and drop(block) == 1 and tree is not None:
                tree.given_back(group, block, cold=cold)

    def sole(self, held: Held) -> bool:
        """Whether some of these blocks have no other holder (but the tree)."""
        for number, (group, blocks) in enumerate(zip(self.groups, held, strict=True)):
            # Without a window, whoever else holds the last block holds those before it too.
            if self.alone(number, blocks[-1:] if group.window is None else blocks):
                return True
        return False

    def alone(self, group: int, blocks: Iterable[int]) -> int:
        """How many of a group's blocks have a single holder (but the tree)."""
        tree, references = self.tree, self.groups[group].pool.references
        return sum(
            references(block) == 1 + (tree is not None and tree.at(group, block) is not None)
            for block in blocks
            if block != NULL_BLOCK
        )

    def poison(self, blocks: Iterable[tuple[int, int]]) -> None:
        """What these blocks (group, block) hold is bad: they leave the tree with all behind them and are scrubbed
        before reuse.
        """
        for group, block in blocks:
            if block == NULL_BLOCK:
                continue
            self._poisoned.add((group, block))
            if self.tree is not None and (node := self.tree.at(group, block)) is not None:
                self._poisoned.update(self.tree.drop(node))

    def poison_nodes(self, nodes: Iterable[Node]) -> None:
        """The same for those of these nodes that are still in the tree, and all behind them."""
        for node in nodes:
            if self.tree is not None and node.attached and node.parent is not None:
                self._poisoned.update(self.tree.drop(node))

    def take_scrubs(self) -> list[tuple[int, int]]:
        """Blocks (group, block) handed out since the last call that must be scrubbed before their use."""
        scrubs, self._to_scrub = self._to_scrub, []
        return scrubs

    def check(self) -> None:
        """Asserts that pools and tree agree."""
        for group in self.groups:
            group.pool.check()
        if self.tree is not None:
            self.tree.check()
