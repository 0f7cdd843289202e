"""BlockTable: the blocks of one request in one KV group, in order. It asks for blocks and hands them back.

Invariant: the token at index i stands in block `blocks[i // block_size]`, at place i % block_size; the first `depth`
blocks are a path of the prefix tree that ends at `node`, those behind are the request's own.
"""

from collections.abc import Sequence

from pelton.kv.blocks import Blocks
from pelton.kv.prefix import BlockKeys, Node


class BlockTable:
    """Grows by whole blocks and is emptied at once. `node` None: no more of its blocks enter the tree."""

    __slots__ = ("_blocks", "_source", "depth", "node")

    def __init__(self, source: Blocks) -> None:
        self._source = source
        self._blocks: list[int] = []
        self.depth = 0
        self.node: Node | None = source.tree.root if source.tree else None

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(self._blocks)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def capacity(self) -> int:
        """Tokens the present blocks hold."""
        return len(self._blocks) * self._source.block_size

    def needed(self, tokens: int) -> int:
        """Blocks to add before the first `tokens` tokens have a place."""
        return max(0, -(-tokens // self._source.block_size) - len(self._blocks))

    def adopt(self, blocks: Sequence[int]) -> None:
        """Begins with these full blocks, which are the table's from now on: the caller took a reference for it."""
        assert not self._blocks, f"the table has {len(self._blocks)} blocks already"
        if not blocks:
            return
        self._blocks = list(blocks)
        self.depth = len(blocks)
        self.node = self._source.tree.at(blocks[-1]) if self._source.tree else None

    def grow(self, tokens: int) -> tuple[int, ...] | None:
        """Takes what `tokens` tokens need; returns the added blocks, or None (nothing changed) if too few are there."""
        count = self.needed(tokens)
        if not count:
            return ()
        added = self._source.alloc(count)
        if added is not None:
            self._blocks += added
        return added

    def fills(self, tokens: int) -> bool:
        """Whether the first `tokens` tokens fill a block that could enter the tree and has not."""
        return self.node is not None and (self.depth + 1) * self._source.block_size <= tokens

    def enter(self, keys: BlockKeys, tokens: int) -> list[Node]:
        """Blocks that the first `tokens` tokens fill enter the tree, not computed yet; returns their nodes.

        Where another request's equal block is there already, this one and all later ones stay out of it.
        """
        entered, tree = list[Node](), self._source.tree
        while tree is not None and self.node is not None and self.fills(tokens):
            self.node = tree.insert(self.node, keys.key(self.depth), self._blocks[self.depth])
            if self.node is not None:
                self.depth += 1
                entered.append(self.node)
        return entered

    def release(self) -> None:
        """Gives all blocks back, the last one first."""
        blocks, self._blocks = self._blocks, []
        self.depth = 0
        self.node = self._source.tree.root if self._source.tree else None
        self._source.release(blocks)
