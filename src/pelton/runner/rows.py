"""RowStates: arrays with one line per row, so that a step's inputs are gathered without a loop over requests.

Holds no request beyond its stay in a row. Invariant: `tokens[row, :length[row]]` are the row's known tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import SAMPLING, Int32


class RowStates:
    """`tokens` [rows, length], `tables` [rows, blocks], `sampling` [rows]; memory is touched only where rows use it."""

    def __init__(self, rows: int, length: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: Int32 = np.empty((rows, length), np.int32)
        self.tables: Int32 = np.zeros((rows, -(-length // block_size)), np.int32)
        self.length = np.zeros(rows, np.int64)
        self.num_blocks = np.zeros(rows, np.int64)
        self.sampling = np.zeros(rows, SAMPLING)

    def take(self, row: int, tokens: Sequence[int] | Int32, record: np.void) -> None:
        """The row holds these tokens, no blocks, and draws by this record."""
        self.tokens[row, : len(tokens)] = tokens
        self.length[row] = len(tokens)
        self.num_blocks[row] = 0
        self.sampling[row] = record

    def known(self, row: int) -> Int32:
        """A copy of the row's tokens."""
        copy: Int32 = self.tokens[row, : self.length[row]].copy()
        return copy

    def append_blocks(self, row: int, blocks: Sequence[int]) -> None:
        present = self.num_blocks[row]
        self.tables[row, present : present + len(blocks)] = blocks
        self.num_blocks[row] = present + len(blocks)

    def append_token(self, row: int, token: int) -> None:
        """One more known token; the next one is drawn with the next place's noise."""
        length = self.length[row]
        self.tokens[row, length] = token
        self.length[row] = length + 1
        self.sampling["place"][row] += 1


def ragged(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For runs of these lengths put one after the other: which run each place belongs to, and its place in that run."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    before = np.cumsum(lengths) - lengths
    return run, np.arange(len(run)) - before[run]
