"""AsyncEngine: the engine as a server has it: in a process of its own, seen from one event loop, which it never blocks.

It speaks of requests only; HTTP is the business of `serve`. Invariant: once `close` is over no process of it runs.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from pelton.core.clock import Clock, SystemClock
from pelton.core.config import EngineConfig
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError
from pelton.core.request import Request
from pelton.engine.front import Front, build_front
from pelton.engine.process.answer import AsyncAnswer
from pelton.engine.process.desk import Audience, Desk, Observer
from pelton.engine.process.messages import Question, Ready
from pelton.engine.process.supervisor import ENGINE_MODULE, State, Supervisor, Watch
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.engine.report import StartReport

ABORT_SECONDS = 5.0  # in which the engine tells the end of what it was to abort

_log = logging.getLogger("pelton")


class AsyncEngine:
    """`front`, `report` (with the vocabulary's notes), `limits` and `requests` are there once `start` is over.

    `observers` may be added at any time.
    """

    front: Front
    report: StartReport
    limits: PromptLimits
    requests: RequestMaker

    def __init__(
        self,
        config: EngineConfig,
        *,
        watchdog_seconds: float = 120.0,
        clock: Clock | None = None,
        watch: Watch | None = None,
        module: str = ENGINE_MODULE,
    ) -> None:
        """`watch`: all times of watching, in place of watchdog_seconds. `module`: what the engine process runs."""
        self.observers: list[Observer] = []
        self._audience = Audience(self.observers)
        self.draining = False
        self._desk: Desk | None = None
        self._config = config
        self._clock = clock or SystemClock()
        self._supervisor = Supervisor(config, watch or Watch(hang=watchdog_seconds), self._clock, module)

    @property
    def state(self) -> State:
        """What the engine process is at; "stopped" after `close`, and when it could not be started again. It is
        "starting" until `start` is over, whichever of both processes takes longer.
        """
        state = self._supervisor.state
        return "starting" if self._desk is None and state == "running" else state

    @property
    def failure(self) -> str | None:
        """Why the engine process could not be started again, in state "stopped"."""
        return None if self._supervisor.error is None else str(self._supervisor.error)

    @property
    def stats(self) -> EngineStats:
        """Of the last step; all zero while the engine is new."""
        return EngineStats() if self._desk is None else self._desk.stats

    @property
    def load(self) -> int:
        """Answers that are in the making or waiting now, those of which no step has told yet among them."""
        return 0 if self._desk is None else len(self._desk.books.sequences())

    @property
    def pid(self) -> int | None:
        """Id of the engine process, None where there is none."""
        return self._supervisor.pid

    async def start(self) -> None:
        """Starts the engine process and waits until the model is loaded. What makes that impossible is raised."""
        front = asyncio.create_task(asyncio.to_thread(build_front, self._config))
        ready = asyncio.create_task(self._supervisor.start())
        try:
            # Whatever fails first is reason enough not to wait for the other.
            self._open(*await asyncio.gather(front, ready))
        except BaseException:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            await self._supervisor.close()
            front.cancel()
            raise

    def submit(self, request: Request) -> AsyncAnswer:
        """As submit_all, for one."""
        return self.submit_all((request,))[0]

    def submit_all(self, requests: Sequence[Request]) -> list[AsyncAnswer]:
        """The requests of one call join the engine, behind those submitted before: all of them, or none. Never blocks.

        OverloadedError where too many wait already, EngineDeadError while there is no engine to join, RequestError for
        an id in use.
        """
        if self._desk is not None and self.state == "running" and not self.draining:
            return self._desk.submit(requests)
        self._audience.rejected("draining" if self.draining else self.state)
        if self.draining:
            raise EngineDeadError("No more requests are taken.", "The server is about to end.")
        if self.state == "stopped":
            raise EngineDeadError(f"The engine process could not be started again: {self.failure}")
        raise EngineDeadError(f"The engine process is {self.state}.", "Send the request again in a few seconds.")

    async def reset_prefix_cache(self) -> bool:
        """Drops every cached block that nobody uses; False where no engine runs."""
        return self._desk is not None and self.state == "running" and await self._desk.reset_prefix_cache()

    async def ask(self, question: Question) -> bytes | None:
        """The engine's answer; None where no engine runs, or it ended meanwhile."""
        if self._desk is None or self.state != "running":
            return None
        return await self._desk.ask(question)

    async def drain(self, seconds: float) -> None:
        """Takes no more requests and waits for the open ones; what is open after so long ends as aborted."""
        self.draining = True
        self._supervisor.expect_end()
        if self._desk is None:
            return
        for pause in (seconds, ABORT_SECONDS):
            try:
                async with asyncio.timeout(pause):
                    await self._desk.books.idle.wait()
                return
            except TimeoutError:
                self._desk.abort_all()
        self._desk.end_all("abort")

    async def close(self) -> None:
        """Ends what is open and the engine process. Closing twice is no error."""
        self.draining = True
        if self._desk is not None:
            self._desk.end_all("abort")
        await self._supervisor.close()

    def _open(self, front: Front, ready: Ready) -> None:
        report = ready.start_report()
        self.front, self.limits = front, ready.limits
        self.report = replace(report, notes=(*report.notes, *front.fit(ready.limits)))
        self.requests = front.maker(ready.limits, self._clock)
        self._desk = Desk(front.tokenizer, self._config.schedule, self._clock, self._audience, self._supervisor.send)
        self._supervisor.watch_over(self._desk)
