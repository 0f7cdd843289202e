"""Blocks: the pool of one KV group and, where prefixes are shared, the tree over it. Knows no request.

Invariant: a block somebody holds is never handed out again, one that only the tree keeps is as good as free.
"""

from collections.abc import Iterable, Sequence

from pelton.core.config import CacheSection
from pelton.kv.pool import BlockPool
from pelton.kv.prefix import Node, PrefixTree


class Blocks:
    """Hands blocks out, evicting cached ones where too few are free, and takes them back. `tree` None: no sharing."""

    def __init__(self, pool: BlockPool, block_size: int, cache: CacheSection) -> None:
        self.block_size = block_size
        self.tree: PrefixTree | None = None
        if cache.enable_prefix_caching:
            most = cache.prefix_cache_tokens
            self.tree = PrefixTree(pool, None if most is None else most // block_size)
        self._pool = pool
        self._poisoned: set[int] = set()
        self._to_scrub: list[int] = []

    @property
    def total(self) -> int:
        return self._pool.total

    @property
    def available(self) -> int:
        """Blocks that can be handed out now: the free ones, and the cached ones that nobody uses."""
        return self._pool.free if self.tree is None else self._pool.free + self.tree.num_unused

    @property
    def held(self) -> int:
        """Blocks that somebody uses."""
        return self._pool.total - self.available

    def needed(self, tokens: int) -> int:
        """Blocks that so many tokens fill or begin."""
        return -(-tokens // self.block_size)

    def alloc(self, count: int) -> tuple[int, ...] | None:
        """`count` blocks with one reference each, or None (and nothing changed) where fewer are available."""
        short = count - self._pool.free
        if short > 0:
            if self.tree is None or short > self.tree.num_unused:
                return None
            for _ in range(short):
                self.tree.evict()
        blocks = self._pool.alloc(count)
        if self._poisoned and blocks:
            scrub = self._poisoned.intersection(blocks)
            self._poisoned -= scrub
            self._to_scrub += sorted(scrub)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference on each of these blocks."""
        self._pool.share(blocks)
        if self.tree is not None:
            for block in blocks:
                self.tree.taken(block)

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each block of a table (in the table's order: the last is given back first)."""
        tree, drop = self.tree, self._pool.drop
        for block in reversed(blocks):
            if drop(block) == 1 and tree is not None:
                tree.given_back(block)

    def sole(self, block: int) -> bool:
        """Whether a block that somebody holds has no other holder (but the tree)."""
        in_tree = self.tree is not None and self.tree.at(block) is not None
        return self._pool.references(block) == 1 + in_tree

    def poison(self, blocks: Iterable[int]) -> None:
        """What these blocks hold is bad: they leave the tree with all behind them and are scrubbed before reuse."""
        for block in blocks:
            self._poisoned.add(block)
            if self.tree is not None and (node := self.tree.at(block)) is not None:
                self._poisoned.update(self.tree.drop(node))

    def poison_nodes(self, nodes: Iterable[Node]) -> None:
        """The same for those of these nodes that are still in the tree."""
        self.poison([node.block for node in nodes if node.attached])

    def take_scrubs(self) -> list[int]:
        """Blocks handed out since the last call that must be scrubbed before their use."""
        scrubs, self._to_scrub = self._to_scrub, []
        return scrubs

    def check(self) -> None:
        """Asserts that pool and tree agree."""
        self._pool.check()
        if self.tree is not None:
            self.tree.check()
