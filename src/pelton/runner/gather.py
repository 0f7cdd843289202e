"""From a plan and what the rows hold to the arrays of one step.

Changes nothing. Order of logit rows: sequence after sequence; within one its scored places, ascending, then the place a
token is drawn at. Invariant: what a row's arrays hold does not depend on its neighbours.
"""

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import COPY, LOAD, SAVE, SCRUB, Int32, Records, StepInputs
from pelton.core.plan import StateOp, StepPlan
from pelton.kv.pool import NULL_BLOCK
from pelton.runner.rows import RowStates, ragged

BLOCK_OPS = {"copy": COPY, "scrub": SCRUB, "save": SAVE, "load": LOAD}
Ints = NDArray[np.int64]


def gather(plan: StepPlan, states: RowStates, wake: int = -1) -> StepInputs:
    """The StepInputs of this plan, whose rows are admitted and have their blocks. `wake`: as in StepInputs."""
    rows = np.array([row.row for row in plan.rows])
    starts = np.array([row.start for row in plan.rows])
    counts = np.array([row.count for row in plan.rows])
    sampled = np.array([row.sample for row in plan.rows])
    run, offset = ragged(counts)
    index = starts[run] + offset
    blocks = -(-(starts + counts + plan.repeat - 1) // states.block_size)
    table, entry = ragged(blocks)
    ends = np.cumsum(counts)
    if any(row.scored for row in plan.rows):
        scored = np.array([row.scored for row in plan.rows])
        piece, place = ragged(scored + sampled)
        given = place < scored[piece]
        logit_rows = np.where(given, (ends - counts)[piece] + place, ends[piece] - 1)
        sampling = _records(states, rows[piece], starts[piece] + place + 1, given)
        drawing = [None if known else row for row, known in zip(rows[piece].tolist(), given.tolist(), strict=True)]
    else:
        drawing = rows[sampled]
        logit_rows = ends[sampled] - 1
        sampling = states.sampling[drawing]
    edits, edit_offsets = states.edits(drawing) if states.edited else (None, None)
    stops, stop_offsets = states.stops(rows.tolist()) if plan.repeat > 1 else (None, None)
    return StepInputs(
        tokens=states.tokens[rows[run], index],
        positions=positions(index),
        starts=starts.astype(np.int32),
        counts=counts.astype(np.int32),
        tables=_tables(states, rows[table], entry, starts[table]),
        table_offsets=np.concatenate([[0], np.cumsum(blocks)]).astype(np.int32),
        logit_rows=logit_rows.astype(np.int32),
        sampling=sampling,
        edits=edits,
        edit_offsets=edit_offsets,
        block_ops=_block_ops(plan.state_ops) if plan.state_ops else None,
        repeat=plan.repeat,
        stops=stops,
        stop_offsets=stop_offsets,
        wake=wake,
    )


def _tables(states: RowStates, rows: Ints, entry: Ints, starts: Ints) -> Int32:
    """Block ids [G, N] of entries of rows whose first token stands at `starts`; the null block behind a window, where
    the scheduler has given the block to others.
    """
    tables: Int32 = states.tables[:, rows, entry]
    for group, window in enumerate(states.windows):
        if window is not None:
            tables[group, entry < np.maximum(0, starts - window + 1) // states.block_size] = NULL_BLOCK
    return tables


def positions(index: Ints) -> Int32:
    """Rotary coordinates [T] of the tokens at these indices: the indices themselves."""
    return index.astype(np.int32)


def _records(states: RowStates, rows: Ints, after: Ints, given: NDArray[np.bool_]) -> Records:
    """SAMPLING records [R] of logit rows; where `given`, the known token at index `after` is reported, none drawn."""
    records = states.sampling[rows]
    rows, after = rows[given], after[given]
    assert (states.scored[rows] >= 0).all(), "a plan scores a request that does not ask for it"
    records["target"][given] = states.tokens[rows, after]
    records["logprobs"][given] = states.scored[rows]
    records["flags"][given] = 0
    return records


def _block_ops(ops: tuple[StateOp, ...]) -> Int32:
    """Rows [N, 4] of (a kind, group, source, target)."""
    return np.array([(BLOCK_OPS[op.kind], op.group, op.source, op.target) for op in ops], np.int32)
