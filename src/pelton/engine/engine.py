"""Engine: open requests, and steps that move them. It speaks token ids only; text is the business of `outputs`.

Invariant: a request is known here, to the scheduler and to the runner from `add_request` until its RequestFinished, and
counted as finished from then on, also before anybody is told.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from pelton.core.clock import Clock
from pelton.core.counters import Counters
from pelton.core.events import Event, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.core.plan import StepPlan
from pelton.core.request import Request
from pelton.engine.load.advice import Advice
from pelton.engine.load.deadlines import Deadlines
from pelton.engine.open_request import OpenRequest
from pelton.engine.step import Done, run_step
from pelton.runner.runner import Runner
from pelton.sampling.follow import settles
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest

_log = logging.getLogger("pelton")


class Engine:
    """Not thread-safe: one caller adds, steps and aborts.

    `stats` describe the state after the last step. `last_plan` is the plan of the last step, also of one that broke;
    `on_plan`, where set, is told each plan before it is run. `coordinates`: see OpenRequest.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        counters: Counters,
        block_size: int,
        coordinates: bytes = b"",
    ) -> None:
        self.scheduler = scheduler
        self.counters = counters
        self.clock = clock
        self.runner = runner
        self.stats = scheduler.stats()
        self.on_plan: Callable[[StepPlan], None] | None = None
        self.last_plan: StepPlan | None = None
        self._schedule_seconds = 0.0
        self._block_size = block_size
        self._coordinates = coordinates
        self._open: dict[str, OpenRequest] = {}
        self._untold: list[Event] = []
        self._just_ended: dict[str, str] = {}
        self._deadlines = Deadlines()
        self._advice = Advice(scheduler.limits.max_num_seqs)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return bool(self._open or self._untold)

    def add_request(self, request: Request) -> None:
        """One sequence joins; RequestError or CapacityError (nothing changed) where it can never run."""
        new = OpenRequest(request, self._block_size, coordinates=self._coordinates)
        self.scheduler.add(
            NewRequest(
                request.request_id,
                prompt=len(request.prompt_token_ids),
                max_tokens=request.max_tokens,
                priority=request.priority,
                arrival=request.arrival,
                keys=new,
                parent=request.parent if request.parent in self._open else None,
                scored=request.scores_prompt,
                settles=settles(request),
                owner=request.owner,
                session=request.session,
            )
        )
        self.runner.add(request)
        self._open[request.request_id] = new
        self._deadlines.add(request)

    def step(self) -> list[Event]:
        """Computes one step and tells what happened since the last one. Requests whose time is up end before it.

        If the step itself breaks, its exception is raised, and the next step tells all open requests' failure: what a
        broken step left half done cannot be told.
        """
        began = self.clock.now()
        for late in self._deadlines.late(began):
            self.counters.add("timed_out")
            self._end(late)
        events, self._untold = self._untold, []
        self._just_ended = {}
        try:
            done = run_step(self.scheduler, self.runner, self._open, self.clock, self._planned)
        except BaseException as error:
            self._untold = events
            self.scheduler.take_back()
            self.fail_all(f"The step broke: {type(error).__name__}: {error}")
            raise
        for event in done.events:
            self._count(event)
            if isinstance(event, RequestFinished):
                self._open.pop(event.request_id, None)
                self._deadlines.over(event.request_id)
                self._just_ended[event.request_id] = event.reason
        if self._just_ended:
            self._check_if_idle()
        self._measure(began, done)
        return events + done.events

    def stop(self, request_id: str) -> None:
        """A request's text met a stop string: it ends as abort does, but counts as stopped.

        So does one that the last step has ended for another reason.
        """
        if request_id in self._open:
            self._end(RequestFinished(request_id, "stop"))
        elif request_id in self._just_ended:
            self.counters.add(f"finished_{self._just_ended.pop(request_id)}", -1)
            self.counters.add("finished_stop")

    def abort(self, request_id: str) -> None:
        """Ends a request, in whatever state, and frees what it holds at once; one that is not open is let be."""
        if request_id in self._open:
            self._end(RequestFinished(request_id, "abort"))

    def abort_all(self) -> None:
        """Ends every open request."""
        for request_id in list(self._open):
            self.abort(request_id)

    def fail_all(self, error: str) -> None:
        """Ends every open request with this error."""
        for request_id in list(self._open):
            self._end(RequestFinished(request_id, "error", error=error))

    def reset_prefix_cache(self) -> Future[None]:
        """Forgets every cached block that no request uses; done once the files of such are gone."""
        return self.scheduler.reset_prefix_cache()

    def check(self) -> None:
        """Asserts that requests, rows and blocks add up."""
        self.scheduler.check()
        known = self.scheduler.num_running + self.scheduler.num_waiting
        assert known == len(self._open), f"the scheduler knows {known} requests, the engine {len(self._open)}"

    def _end(self, event: RequestFinished) -> None:
        del self._open[event.request_id]
        self._deadlines.over(event.request_id)
        self.scheduler.finish(event.request_id)
        self.runner.forget(event.request_id)
        self._untold.append(event)
        self._count(event)
        self._check_if_idle()

    def _planned(self, plan: StepPlan | None, seconds: float) -> None:
        self.last_plan, self._schedule_seconds = plan, seconds
        if plan is not None and self.on_plan is not None:
            self.on_plan(plan)

    def _measure(self, began: float, done: Done) -> None:
        """The figures of a step, or a series, that is over; one that had nothing to compute counts as none."""
        plan, seconds = self.last_plan, self.clock.now() - began
        if plan is not None:
            self.scheduler.tiers.rates.saw(plan, done.seconds, done.moving)
        if plan is not None and plan.num_tokens == len(plan.rows):
            self.scheduler.series.saw(len(plan.rows), done.steps, seconds)
        self.stats = msgspec.structs.replace(
            self.scheduler.stats(),
            steps_total=self.stats.steps_total + done.steps,
            step_tokens=done.steps * plan.num_tokens if plan else 0,
            step_sequences=len(plan.rows) if plan else 0,
            step_seconds=seconds if plan else 0.0,
            schedule_seconds=self._schedule_seconds,
            step_steps=done.steps,
            backend_seconds_total=self.stats.backend_seconds_total + done.seconds,
        )
        for said in self._advice.saw(done.events, self.stats, began):
            _log.warning("%s", said)

    def _check_if_idle(self) -> None:
        """Nothing but sessions may hold anything once the last request is gone. A failure is told and counted; the
        engine goes on.
        """
        if self._open:
            return
        stats = self.scheduler.stats()
        if not (stats.running or stats.waiting or stats.held_blocks != stats.session_blocks):
            return
        try:
            self.check()
            raise AssertionError(f"nobody is left, and {stats.kv_usage:.2%} of the blocks are held")
        except AssertionError as error:
            _log.error("The engine's books do not add up: %s", error)
            self.counters.add("check_failures")

    def _count(self, event: Event) -> None:
        match event:
            case TokensGenerated(tokens=tokens):
                self.counters.add("generated_tokens", len(tokens))
            case RequestPreempted():
                self.counters.add("preemptions")
            case RequestScheduled(request_id=name, cached_tokens=cached, lookup=lookup) if lookup is not None:
                _log.debug("request %s: %d tokens of its prompt were cached; %s", name, cached, lookup)
            case RequestFinished(reason=reason):
                self.counters.add(f"finished_{reason}")
            case _:
                pass


def rest(engine: Engine) -> None:
    """For who has nothing to compute and nobody to tell: some of what is cached goes to files."""
    on_idle = engine.scheduler.tiers.on_idle
    if engine.scheduler.num_running or engine.scheduler.num_waiting or on_idle is None:
        return
    try:
        on_idle()
    except Exception:  # noqa: BLE001 - logged; nobody waits for it
        _log.exception("What is cached could not be kept in files")
