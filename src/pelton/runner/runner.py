"""Runner: executes plans. Keeps each open request's tokens, sampling record and edits; decides nothing.

Invariant: a preempted request's tokens are kept until it gets a row again, so its answer goes on as if nothing were.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from pelton.backends.backend import FAULT_BAD_LOGITS, FAULT_NO_TOKEN, Executable, Int32, StepOutputs
from pelton.core.params import SamplingParams
from pelton.core.plan import RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from pelton.core.request import Request
from pelton.runner.aside import Aside
from pelton.runner.gather import gather
from pelton.runner.rows import RowStates
from pelton.sampling.follow import follow

Encode = Callable[[SamplingParams, int, int], np.void]

FAULTS: Mapping[int, str] = {
    FAULT_BAD_LOGITS: (
        "The model's logits for this request contain NaN or infinity. "
        "Its weights may be damaged; fetch or convert them again."
    ),
    FAULT_NO_TOKEN: (
        "No token is left to choose from: what the request allows (allowed_token_ids) and what it bans (words, and "
        "whatever would end the answer too early) exclude all. Allow more, or ban less."
    ),
}


@dataclass(slots=True)
class _Open:
    """A request between `add` and `forget`. `parked`: its tokens while it has no row (None: the prompt alone)."""

    request: Request
    row: int | None = None
    parked: Int32 | None = None


class Runner:
    """Runs one plan at a time. `encode(params, place, child)` gives the SAMPLING record of a request's next draw.

    `wake`: a file descriptor; once it is readable, no further step of a plan that has several begins. -1: none.
    """

    def __init__(self, executable: Executable, states: RowStates, encode: Encode) -> None:
        self.wake = -1
        self._executable = executable
        self._rows = states
        self._encode = encode
        self._owners: list[str | None] = [None] * len(states.length)
        self._open: dict[str, _Open] = {}
        self._aside = Aside()

    def add(self, request: Request) -> None:
        """A request that coming plans may admit."""
        self._open[request.request_id] = _Open(request)

    def forget(self, request_id: str) -> None:
        """The request is over; its row, if it has one, is released by the next plan."""
        gone = self._open.pop(request_id, None)
        if gone is not None and gone.row is not None:
            self._owners[gone.row] = None

    def run(self, plan: StepPlan, meanwhile: Callable[[], None] | None = None) -> StepResult:
        """Computes the plan's tokens and draws one for each row that samples, or one in each of the plan's steps.

        Faults stay in their row. `meanwhile` is called in another thread while the backend computes, and is over when
        this is; it must not touch this runner.
        """
        _expect_built(plan)
        self._release(plan)
        self._admit(plan)
        for row, blocks in plan.new_blocks.items():
            self._rows.append_blocks(row, blocks)
        inputs = gather(plan, self._rows, self.wake)
        if meanwhile is None:
            outputs = self._executable.run(inputs)
        else:
            outputs = self._aside.call(partial(self._executable.run, inputs), meanwhile)
        rows = self._several(plan, outputs) if outputs.steps > 1 else self._results(plan, outputs)
        return StepResult(rows, outputs.steps, outputs.seconds, outputs.moving)

    def close(self) -> None:
        """Nothing is run any more; twice is no error."""
        self._aside.close()

    def _release(self, plan: StepPlan) -> None:
        for row in plan.released:
            owner, self._owners[row] = self._owners[row], None
            if owner is not None:
                preempted = self._open[owner]
                preempted.row, preempted.parked = None, self._rows.known(row)
            self._rows.drop(row)

    def _admit(self, plan: StepPlan) -> None:
        for admission in plan.admitted:
            entry = self._open[admission.request_id]
            request = entry.request
            tokens = request.prompt_token_ids if entry.parked is None else entry.parked
            output = tokens[len(request.prompt_token_ids) :]
            record = self._encode(request.params, len(output), request.child)
            wanted = request.params.prompt_logprobs if request.scores_prompt else None
            edits = follow(request, [int(token) for token in output])
            scored = -1 if wanted is None else wanted
            self._rows.take(admission.row, tokens, record, edits, scored, request.stop_token_ids)
            self._owners[admission.row] = admission.request_id
            entry.row, entry.parked = admission.row, None

    def _several(self, plan: StepPlan, outputs: StepOutputs) -> tuple[RowResult, ...]:
        """Of steps in which every row drew a token: none of them had a fault."""
        count = len(plan.rows)
        drawn = outputs.tokens.reshape(outputs.steps, count).T.tolist()
        results = []
        for place, (row, tokens) in enumerate(zip(plan.rows, drawn, strict=True)):
            self._rows.append_tokens(row.row, tokens)
            places = range(place, outputs.steps * count, count)
            results.append(RowResult(row.row, tuple(tokens), self._logprobs(row.row, outputs, places)))
        return tuple(results)

    def _results(self, plan: StepPlan, outputs: StepOutputs) -> tuple[RowResult, ...]:
        results = []
        logit_row = 0
        tokens, faults = outputs.tokens.tolist(), outputs.faults.tolist()
        for row in plan.rows:
            if row.scored:
                results.append(self._scored(row, outputs, logit_row))
                logit_row += row.scored + row.sample
            elif not row.sample:
                results.append(RowResult(row.row))
            elif faults[logit_row]:
                results.append(RowResult(row.row, fault=FAULTS[faults[logit_row]]))
                logit_row += 1
            else:
                drawn = (tokens[logit_row],)
                self._rows.append_tokens(row.row, drawn)
                results.append(RowResult(row.row, drawn, self._logprobs(row.row, outputs, (logit_row,))))
                logit_row += 1
        return tuple(results)

    def _scored(self, row: RowPlan, outputs: StepOutputs, first: int) -> RowResult:
        """The result of a row whose scored places begin at logit row `first`; any fault among its logits is its own."""
        end = first + row.scored
        (faulty,) = outputs.faults[first : end + row.sample].nonzero()
        if len(faulty):
            return RowResult(row.row, fault=FAULTS[int(outputs.faults[first + faulty[0]])])
        wanted = int(self._rows.scored[row.row])
        scores = tuple(_logprobs(outputs, logit_row, wanted) for logit_row in range(first, end))
        if not row.sample:
            return RowResult(row.row, scores=scores)
        drawn = (int(outputs.tokens[end]),)
        self._rows.append_tokens(row.row, drawn)
        return RowResult(row.row, drawn, self._logprobs(row.row, outputs, (end,)), scores=scores)

    def _logprobs(self, row: int, outputs: StepOutputs, logit_rows: Iterable[int]) -> tuple[TokenLogprobs, ...]:
        wanted = int(self._rows.sampling["logprobs"][row])
        return () if wanted < 0 else tuple(_logprobs(outputs, logit_row, wanted) for logit_row in logit_rows)


def _logprobs(outputs: StepOutputs, logit_row: int, wanted: int) -> TokenLogprobs:
    """What one logit row tells, with its `wanted` most likely tokens, or as many as there are."""
    top_ids = outputs.top_ids[logit_row, :wanted]
    present = int(np.count_nonzero(top_ids >= 0))
    return TokenLogprobs(
        logprob=float(outputs.logprobs[logit_row]),
        rank=int(outputs.ranks[logit_row]),
        top_ids=tuple(top_ids[:present].tolist()),
        top_logprobs=tuple(outputs.top_logprobs[logit_row, :present].tolist()),
    )


def _expect_built(plan: StepPlan) -> None:
    """Asserts that the plan asks for nothing that only its record has so far."""
    asked = {
        "masks": bool(plan.masks),
        "drafted": any(row.drafted for row in plan.rows),
    }
    unbuilt = [name for name, wanted in asked.items() if wanted]
    assert not unbuilt, f"a plan has {', '.join(unbuilt)}, which the runner does not carry out yet"
