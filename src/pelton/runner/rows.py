"""RowStates: arrays with one line per row, so that a step's inputs are gathered without a loop over requests.

Holds no request beyond its stay in a row. Invariant: `tokens[row, :length[row]]` are the row's known tokens.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import EDIT, SAMPLING, Int32, Records
from pelton.sampling.follow import RowEdits

NONE: Records = np.zeros(0, EDIT)


class RowStates:
    """`tokens` [rows, length], `tables` [groups, rows, blocks], `sampling` [rows]; memory is touched only where used.

    `windows`: of each KV group, as in program.states.KVSpec.

    `scored` [rows]: how many top log-probabilities go with a prompt token's; -1: its log-probability is not wanted.
    """

    def __init__(self, rows: int, length: int, block_size: int, windows: Sequence[int | None] = (None,)) -> None:
        self.block_size = block_size
        self.windows = tuple(windows)
        self.tokens: Int32 = np.empty((rows, length), np.int32)
        self.tables: Int32 = np.zeros((len(self.windows), rows, -(-length // block_size)), np.int32)
        self.length = np.zeros(rows, np.int64)
        self.num_blocks = np.zeros(rows, np.int64)
        self.sampling = np.zeros(rows, SAMPLING)
        self.scored: Int32 = np.full(rows, -1, np.int32)
        self._edits: dict[int, RowEdits] = {}

    def take(
        self, row: int, tokens: Sequence[int] | Int32, record: np.void, edits: RowEdits | None = None, scored: int = -1
    ) -> None:
        """The row holds these tokens, no blocks, and draws by this record and these edits."""
        self.tokens[row, : len(tokens)] = tokens
        self.length[row] = len(tokens)
        self.num_blocks[row] = 0
        self.sampling[row] = record
        self.scored[row] = scored
        self.drop(row)
        if edits is not None:
            self._edits[row] = edits

    def drop(self, row: int) -> None:
        """The row is free: nothing of it is followed any more."""
        self._edits.pop(row, None)

    def known(self, row: int) -> Int32:
        """A copy of the row's tokens."""
        copy: Int32 = self.tokens[row, : self.length[row]].copy()
        return copy

    def append_blocks(self, row: int, blocks: Sequence[Sequence[int]]) -> None:
        """Entries of the row's tables, equally many for each KV group."""
        present, count = self.num_blocks[row], len(blocks[0])
        self.tables[:, row, present : present + count] = blocks
        self.num_blocks[row] = present + count

    def append_token(self, row: int, token: int) -> None:
        """One more known token; the next one is drawn with the next place's noise and what the edits then say."""
        length = self.length[row]
        self.tokens[row, length] = token
        self.length[row] = length + 1
        self.sampling["place"][row] += 1
        if self._edits:
            edits = self._edits.get(row)
            if edits is not None:
                edits.take(token)

    @property
    def edited(self) -> bool:
        """Whether any row's logits are edited before the draw."""
        return bool(self._edits)

    def edits(self, rows: Iterable[int | None]) -> tuple[Records, Int32] | tuple[None, None]:
        """Entries of EDIT of one logit row after the other, and where each one's begin [n + 1]; None if there are none.

        `rows`: the row that each logit row draws for; None for one that draws nothing.
        """
        followed = [None if row is None else self._edits.get(row) for row in rows]
        found = [NONE if edits is None else edits.records() for edits in followed]
        ends = np.cumsum([0, *map(len, found)])
        if not ends[-1]:
            return None, None
        # As plain numbers, because joining arrays of records takes numpy several times as long.
        return np.concatenate([one.view(np.int32) for one in found]).view(EDIT), ends.astype(np.int32)


def ragged(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For runs of these lengths put one after the other: which run each place belongs to, and its place in that run."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    before = np.cumsum(lengths) - lengths
    return run, np.arange(len(run)) - before[run]
