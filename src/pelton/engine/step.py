"""One step of the engine, whole: plan -> masks -> run -> verify and sample -> commit -> events.

Invariant: lengths and blocks are committed before the step's tokens are told to anybody.
"""

from collections.abc import Mapping

from pelton.core.events import Event, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.engine.open_request import OpenRequest
from pelton.runner.runner import Runner
from pelton.schedule.scheduler import Scheduler


def run_step(scheduler: Scheduler, runner: Runner, requests: Mapping[str, OpenRequest], now: float) -> list[Event]:
    """What happened in one step, in order; empty if there is nothing to do. `now` in seconds of the engine's clock.

    RuntimeError where requests are open but none can go on: their waiters would ask for ever.
    """
    plan = scheduler.plan(now)
    if plan is None:
        if requests:
            raise RuntimeError(f"no progress with {len(requests)} open requests")
        return []
    events: list[Event] = [RequestPreempted(request_id) for request_id in scheduler.preempted]
    events += [RequestScheduled(admission.request_id, admission.cached) for admission in plan.admitted]

    # Rows with a grammar would have their masks filled here; drawing and comparing drafts happen inside `run`.
    result = runner.run(plan)

    generated: dict[int, int] = {}
    finished: set[int] = set()
    for row in result.rows:
        request_id = scheduler.request_at(row.row)
        if request_id is None:
            continue  # aborted while the step ran
        for event in requests[request_id].accept(row, scheduler.max_len):
            events.append(event)
            if isinstance(event, TokensGenerated):
                generated[row.row] = len(event.tokens)
            elif isinstance(event, RequestFinished):
                finished.add(row.row)
                runner.forget(request_id)
    scheduler.commit(plan, generated, finished)
    return events
