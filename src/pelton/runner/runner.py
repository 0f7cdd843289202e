"""Runner: executes plans. Keeps each open request's tokens and sampling record; decides nothing.

Invariant: a preempted request's tokens are kept until it gets a row again, so its answer goes on as if nothing were.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pelton.backends.backend import Executable, Int32, StepInputs, StepOutputs
from pelton.core.params import SamplingParams
from pelton.core.plan import RowResult, StepPlan, StepResult, TokenLogprobs
from pelton.core.request import Request
from pelton.runner.rows import RowStates, ragged

Encode = Callable[[SamplingParams, int], np.void]

FAULT = (
    "The model's logits for this request contain NaN or infinity. "
    "Its weights may be damaged; fetch or convert them again."
)


@dataclass(slots=True)
class _Open:
    """A request between `add` and `forget`. `parked`: its tokens while it has no row (None: the prompt alone)."""

    request: Request
    row: int | None = None
    parked: Int32 | None = None


class Runner:
    """Runs one plan at a time. `encode(params, place)` gives the SAMPLING record of a request's next draw."""

    def __init__(self, executable: Executable, states: RowStates, encode: Encode) -> None:
        self._executable = executable
        self._rows = states
        self._encode = encode
        self._owners: list[str | None] = [None] * len(states.length)
        self._open: dict[str, _Open] = {}

    def add(self, request: Request) -> None:
        """A request that coming plans may admit."""
        self._open[request.request_id] = _Open(request)

    def forget(self, request_id: str) -> None:
        """The request is over; its row, if it has one, is released by the next plan."""
        gone = self._open.pop(request_id, None)
        if gone is not None and gone.row is not None:
            self._owners[gone.row] = None

    def run(self, plan: StepPlan) -> StepResult:
        """Computes the plan's tokens and draws one for each row that samples; faults stay in their row."""
        _expect_built(plan)
        self._release(plan)
        self._admit(plan)
        for row, (blocks,) in plan.new_blocks.items():
            self._rows.append_blocks(row, blocks)
        return self._results(plan, self._executable.run(self._inputs(plan)))

    def _release(self, plan: StepPlan) -> None:
        for row in plan.released:
            owner, self._owners[row] = self._owners[row], None
            if owner is not None:
                preempted = self._open[owner]
                preempted.row, preempted.parked = None, self._rows.known(row)

    def _admit(self, plan: StepPlan) -> None:
        for admission in plan.admitted:
            entry = self._open[admission.request_id]
            tokens = entry.request.prompt_token_ids if entry.parked is None else entry.parked
            place = len(tokens) - len(entry.request.prompt_token_ids)
            self._rows.take(admission.row, tokens, self._encode(entry.request.params, place))
            self._owners[admission.row] = admission.request_id
            entry.row, entry.parked = admission.row, None

    def _inputs(self, plan: StepPlan) -> StepInputs:
        states = self._rows
        rows = np.array([row.row for row in plan.rows])
        starts = np.array([row.start for row in plan.rows])
        counts = np.array([row.count for row in plan.rows])
        sampled = np.array([row.sample for row in plan.rows])
        run, offset = ragged(counts)
        index = starts[run] + offset
        blocks = -(-(starts + counts) // states.block_size)
        table, entry = ragged(blocks)
        ends = np.cumsum(counts)
        return StepInputs(
            tokens=states.tokens[rows[run], index],
            positions=positions(index),
            starts=starts.astype(np.int32),
            counts=counts.astype(np.int32),
            tables=states.tables[rows[table], entry],
            table_offsets=np.concatenate([[0], np.cumsum(blocks)]).astype(np.int32),
            logit_rows=(ends[sampled] - 1).astype(np.int32),
            sampling=states.sampling[rows[sampled]],
        )

    def _results(self, plan: StepPlan, outputs: StepOutputs) -> StepResult:
        results = []
        logit_row = 0
        tokens, faults = outputs.tokens.tolist(), outputs.faults.tolist()
        for row in plan.rows:
            if not row.sample:
                results.append(RowResult(row.row))
                continue
            if faults[logit_row]:
                results.append(RowResult(row.row, fault=FAULT))
            else:
                self._rows.append_token(row.row, tokens[logit_row])
                results.append(RowResult(row.row, (tokens[logit_row],), self._logprobs(row.row, outputs, logit_row)))
            logit_row += 1
        return StepResult(tuple(results))

    def _logprobs(self, row: int, outputs: StepOutputs, logit_row: int) -> tuple[TokenLogprobs, ...]:
        wanted = int(self._rows.sampling["logprobs"][row])
        if wanted < 0:
            return ()
        top_ids = outputs.top_ids[logit_row, :wanted]
        present = int(np.count_nonzero(top_ids >= 0))
        return (
            TokenLogprobs(
                logprob=float(outputs.logprobs[logit_row]),
                rank=int(outputs.ranks[logit_row]),
                top_ids=tuple(top_ids[:present].tolist()),
                top_logprobs=tuple(outputs.top_logprobs[logit_row, :present].tolist()),
            ),
        )


def _expect_built(plan: StepPlan) -> None:
    """Asserts that the plan asks for nothing that only its record has so far."""
    asked = {
        "state_ops": bool(plan.state_ops),
        "masks": bool(plan.masks),
        "repeat": plan.repeat != 1,
        "drafted": any(row.drafted for row in plan.rows),
    }
    unbuilt = [name for name, wanted in asked.items() if wanted]
    assert not unbuilt, f"a plan has {', '.join(unbuilt)}, which the runner does not carry out yet"


def positions(index: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Int32:
    """Rotary coordinates [T] of the tokens at these indices: the indices themselves."""
    return index.astype(np.int32)
