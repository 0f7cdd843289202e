"""BlockTable: the blocks of one request in one KV group, in order. It asks a pool for blocks and hands them back.

Invariant: the token at index i stands in block `blocks[i // block_size]`, at place i % block_size.
"""

from pelton.kv.pool import BlockPool


class BlockTable:
    """Grows by whole blocks and is emptied at once."""

    __slots__ = ("_blocks", "_pool", "block_size")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._blocks: list[int] = []
        self.block_size = block_size

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(self._blocks)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def capacity(self) -> int:
        """Tokens the present blocks hold."""
        return len(self._blocks) * self.block_size

    def needed(self, tokens: int) -> int:
        """Blocks to add before the first `tokens` tokens have a place."""
        return max(0, -(-tokens // self.block_size) - len(self._blocks))

    def grow(self, tokens: int) -> tuple[int, ...] | None:
        """Takes what `tokens` tokens need; returns the added blocks, or None (nothing changed) if too few are free."""
        count = self.needed(tokens)
        if not count:
            return ()
        added = self._pool.alloc(count)
        if added is not None:
            self._blocks += added
        return added

    def release(self) -> None:
        """Gives all blocks back; the pool hands out the last of them first."""
        blocks, self._blocks = self._blocks, []
        self._pool.release(blocks)
