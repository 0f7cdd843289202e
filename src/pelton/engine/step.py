"""One step of the engine, whole: plan -> masks -> run -> verify and sample -> commit -> events.

With a planning depth of 2 the rows of the next plan are made while this one is run (schedule/ahead/).
Invariant: lengths and blocks are committed before the step's tokens are told to anybody.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pelton.core.clock import Clock
from pelton.core.events import (
    Event,
    PromptScored,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    TokensGenerated,
)
from pelton.core.plan import StepPlan
from pelton.engine.open_request import NO_TOKEN, OpenRequest
from pelton.runner.runner import Runner
from pelton.schedule.scheduler import Scheduler

Planned = Callable[[StepPlan | None, float], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What happened in a call, in order; how many steps it had, and how many seconds of it the backend took, of which
    `moving` for saving and loading blocks.
    """

    events: list[Event]
    steps: int = 0
    seconds: float = 0.0
    moving: float = 0.0


def run_step(
    scheduler: Scheduler, runner: Runner, requests: Mapping[str, OpenRequest], clock: Clock, planned: Planned
) -> Done:
    """What happened in one step, or in a series of them that the scheduler planned; nothing if there is nothing to do.

    `planned` is told the plan, and the seconds it took to make it, before it is run: a step may take the process down.
    RuntimeError where requests are open but none can go on: their waiters would ask for ever.
    """
    began = clock.now()
    plan = scheduler.plan(began)
    planned(plan, clock.now() - began)
    if plan is None:
        if requests:
            raise RuntimeError(f"no progress with {len(requests)} open requests")
        return Done([])
    events: list[Event] = [RequestPreempted(request_id) for request_id in scheduler.preempted]
    events += [RequestScheduled(one.request_id, one.cached, one.lookup) for one in plan.admitted]

    # Rows with a grammar would have their masks filled here; drawing and comparing drafts happen inside `run`.
    ahead = scheduler.ahead if plan.repeat == 1 else None
    result = runner.run(plan, None if ahead is None else partial(ahead.make, plan, scheduler.limits))

    owners = [scheduler.request_at(row.row) for row in result.rows]
    for owner, row in zip(owners, result.rows, strict=True):
        if owner is not None and row.fault is not None and row.fault != NO_TOKEN:
            # Who has read what another wrote is computed once more by itself; its row is empty then.
            scheduler.fault(row.row)

    generated: dict[int, int] = {}
    finished: set[int] = set()
    for request_id, piece, row in zip(owners, plan.rows, result.rows, strict=True):
        if request_id is None or scheduler.request_at(row.row) is None:
            continue  # aborted while the step ran, or to be computed once more
        if row.scores:
            events.append(PromptScored(request_id, piece.start + 1, row.scores))
        for event in requests[request_id].accept(row, scheduler.max_len):
            events.append(event)
            if isinstance(event, TokensGenerated):
                generated[row.row] = len(event.tokens)
            elif isinstance(event, RequestFinished):
                finished.add(row.row)
                runner.forget(request_id)
    scheduler.commit(plan, generated, finished, result.steps)
    return Done(events, result.steps, result.seconds, result.moving)
