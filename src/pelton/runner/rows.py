"""RowStates: arrays with one line per row, so that a step's inputs are gathered without a loop over requests.

Holds no request beyond its stay in a row. Invariant: `tokens[row, :length[row]]` are the row's known tokens.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import EDIT, SAMPLING, Int32, Records
from pelton.sampling.follow import RowEdits

NONE: Records = np.zeros(0, EDIT)
NO_TOKENS: Int32 = np.zeros(0, np.int32)


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
        self._stops: list[Int32] = [NO_TOKENS] * rows

    def take(
        self,
        row: int,
        tokens: Sequence[int] | Int32,
        record: np.void,
        edits: RowEdits | None = None,
        scored: int = -1,
        stops: Collection[int] = (),
    ) -> None:
        """The row holds these tokens, no blocks, and draws by this record and these edits until one of the stops."""
        self.tokens[row, : len(tokens)] = tokens
        self.length[row] = len(tokens)
        self.num_blocks[row] = 0
        self.sampling[row] = record
        self.scored[row] = scored
        self._stops[row] = np.array(sorted(stops), np.int32)
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

    def append_tokens(self, row: int, tokens: Sequence[int]) -> None:
        """More known tokens; the next one is drawn with the next place's noise and what the edits then say."""
        length, count = self.length[row], len(tokens)
        self.tokens[row, length : length + count] = tokens
        self.length[row] = length + count
        self.sampling["place"][row] += count
        if self._edits and (edits := self._edits.get(row)) is not None:
            for token in tokens:
                edits.take(token)

    def stops(self, rows: Sequence[int]) -> tuple[Int32, Int32]:
        """Tokens that end the rows, one row's after the other's, and where each one's begin [n + 1]."""
        own = [self._stops[row] for row in rows]
        ends = np.zeros(len(own) + 1, np.int32)
        np.cumsum([len(one) for one in own], out=ends[1:])
        return np.concatenate(own), ends

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
