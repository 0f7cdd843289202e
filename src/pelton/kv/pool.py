"""BlockPool: which KV blocks are free and how often the others are used. Block ids only, no bytes, no requests.

Invariant: free + used == total, and a block is free exactly when its reference count is 0.
"""

from collections.abc import Iterable

NULL_BLOCK = 0  # never handed out: padding reads and writes go there


class BlockPool:
    """Reference-counted blocks from 1 on. The one freed last is given out first: its memory is touched already.

    `holds`: references on all of them together.
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 2:
            raise ValueError(f"a pool of {blocks} blocks has none to give: block {NULL_BLOCK} is reserved")
        self._references = [0] * blocks
        self._references[NULL_BLOCK] = 1
        self.holds = 0
        self._free = list(range(blocks - 1, NULL_BLOCK, -1))

    @property
    def total(self) -> int:
        """Blocks that can be handed out (the null block is not among them)."""
        return len(self._references) - 1

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def references(self, block: int) -> int:
        """How many holders a block has."""
        return self._references[block]

    def alloc(self, count: int) -> tuple[int, ...] | None:
        """`count` blocks with one reference each, or None (and nothing changed) where fewer are free."""
        if count > len(self._free):
            return None
        blocks = tuple(self._free.pop() for _ in range(count))
        for block in blocks:
            self._references[block] = 1
        self.holds += count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference on each block, all of which must be in use."""
        taken = tuple(blocks)
        for block in taken:
            self._expect_used(block, "share")
        for block in taken:
            self._references[block] += 1
        self.holds += len(taken)

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less on each block; what has none left is free. Releasing a free block is an error."""
        for block in blocks:
            self.drop(block)

    def drop(self, block: int) -> int:
        """One reference less on a block; returns how many are left (0: it is free now)."""
        self._expect_used(block, "release")
        left = self._references[block] - 1
        self._references[block] = left
        self.holds -= 1
        if not left:
            self._free.append(block)
        return left

    def check(self) -> None:
        """Asserts the invariant with the numbers that break it."""
        negative = [block for block, count in enumerate(self._references) if count < 0]
        assert not negative, f"negative reference counts: {negative}"
        held = sum(count > 0 for count in self._references) - 1
        assert held + len(self._free) == self.total, f"{held} used + {len(self._free)} free != {self.total} blocks"
        assert len(set(self._free)) == len(self._free), f"a block is twice in the free list of {len(self._free)}"
        wrong = [block for block in self._free if self._references[block]]
        assert not wrong, f"free blocks with references: {wrong}"
        assert sum(self._references) - 1 == self.holds, f"{sum(self._references) - 1} references, {self.holds} counted"
        assert self._references[NULL_BLOCK] == 1, f"null block has {self._references[NULL_BLOCK]} references"

    def _expect_used(self, block: int, verb: str) -> None:
        if block == NULL_BLOCK or not 0 < block < len(self._references):
            raise ValueError(f"cannot {verb} block {block} of {len(self._references)}")
        if self._references[block] < 1:
            raise ValueError(f"cannot {verb} block {block}: it is free")
