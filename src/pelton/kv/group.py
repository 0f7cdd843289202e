"""KVGroup: the layers that look equally far back, and their pool of blocks. Arithmetic on indices and blocks only.

Invariant: a token at index i of a group with a window of W sees the indices from i - W + 1 to i, and none before.
"""

from dataclasses import dataclass

from pelton.kv.pool import BlockPool

Held = tuple[tuple[int, ...], ...]  # for each group the blocks of a table's entries; NULL_BLOCK where none is held


def first_block(window: int | None, index: int, block_size: int) -> int:
    """Number of the block that holds the first index which the token at `index` sees."""
    return 0 if window is None else max(0, index - window + 1) // block_size


def most_blocks(window: int | None, tokens: int, step: int, block_size: int) -> int:
    """Most blocks that a request of `tokens` tokens holds at once, if a step computes at most `step` of them."""
    whole = -(-tokens // block_size)
    if window is None:
        return whole
    # What the step's first token sees and the step's tokens, wherever they begin within a block.
    return min(whole, (window - 1 + step + block_size - 2) // block_size + 1)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """`window`: tokens a query sees, itself included; None: all before it. `slots`: host slots, each for a block's
    bytes, of which there are `block_bytes`.
    """

    pool: BlockPool
    window: int | None = None
    slots: int = 0
    block_bytes: int = 1
