"""run: the server from its first to its last moment: engine, HTTP, signals. It answers no request itself.

Invariant: whatever ends it, the engine process and the socket are gone afterwards.
"""

import asyncio
import contextlib
import copy
import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import fields

import uvicorn
import uvloop
from uvicorn.config import LOGGING_CONFIG

from pelton.core.clock import Clock, SystemClock
from pelton.core.config import EngineConfig
from pelton.core.errors import EngineDeadError
from pelton.core.params import DRAWING, SamplingParams
from pelton.engine.process.client import AsyncEngine
from pelton.sampling.effective import GENERAL, Effective, effective
from pelton.serve.app import create_app
from pelton.serve.listening import Listening, connections_at_most
from pelton.serve.metrics import Metrics
from pelton.serve.metrics.advice import CacheAdvice
from pelton.serve.protocol import Bounds
from pelton.serve.settings import ServeSettings

KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 5.0  # for the last bytes to reach clients that read slowly
WATCH_SECONDS = 0.5
NICENESS = 10

_log = logging.getLogger("pelton")
Tell = Callable[[str], None]


class Server:
    """One server. `tell` takes lines for its user, `began` is when the command was given, by the clock."""

    def __init__(self, config: EngineConfig, settings: ServeSettings, listening: Listening, tell: Tell) -> None:
        self._config = config
        self._settings = settings
        self._listening = listening
        self._tell = tell
        self._engine = AsyncEngine(config, watchdog_seconds=settings.watchdog_timeout)
        self._metrics = Metrics(settings.served_model_names[0])
        self._engine.observers += [self._metrics, CacheAdvice(SystemClock())]
        self._web = _Web(_web_config(create_app(self._engine, settings, self._metrics), settings))
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()

    async def run(self, began: float, clock: Clock) -> None:
        """Until it is told to end. PeltonError where the engine cannot start, EngineDeadError where it gives up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        web = asyncio.create_task(self._web.serve([self._listening.socket]))
        try:
            if await self._start(web):
                self._announce(clock.now() - began)
                await self._wait(web)
            await self._end(web)
        finally:
            self._web.force_exit = self._web.should_exit = True
            await self._engine.close()
            await asyncio.gather(web, return_exceptions=True)

    def _on_signal(self) -> None:
        """The first one asks for an end, the second one for an end at once."""
        (self._at_once if self._asked.is_set() else self._asked).set()

    async def _start(self, web: "asyncio.Task[None]") -> bool:
        """Whether the engine runs; not if an end was asked for meanwhile."""
        start = asyncio.create_task(self._engine.start())
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait((start, asked, web), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                if web.done():
                    web.result()
                return False
            start.result()
        finally:
            await _cancel(start, asked)
        os.nice(NICENESS)  # the engine process has been started before, and keeps its own
        self._metrics.ready(self._config, self._engine.report)
        return True

    def _announce(self, seconds: float) -> None:
        engine = self._engine
        for line in engine.report.lines():
            self._tell(line)
        self._tell(f"sampling {sampling_line(effective({}, engine.front.defaults))}")
        for note in (*engine.report.notes, *engine.front.notes):
            self._tell(f"note: {note}")
        if not (engine.front.chat_template or self._config.model.chat_template):
            self._tell("note: the model has no chat template: chats are refused; --chat-template FILE gives one")
        names = ", ".join(self._settings.served_model_names)
        self._tell(f"ready    on {self._listening.url} after {seconds:.2f} s, as {names}")

    async def _wait(self, web: "asyncio.Task[None]") -> None:
        """Until an end is asked for. EngineDeadError where the engine gave up."""
        asked = asyncio.create_task(self._asked.wait())
        try:
            while not asked.done():
                await asyncio.wait((asked, web), timeout=WATCH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if web.done():
                    web.result()
                    return
                if self._engine.state == "stopped" and not asked.done():
                    why = self._engine.failure or "It ended again and again."
                    raise EngineDeadError(f"The engine process is gone. {why}", "Start the server again.")
        finally:
            await _cancel(asked)

    async def _end(self, web: "asyncio.Task[None]") -> None:
        """Open requests come to their end, or the time that they get; then nobody is connected any more."""
        drained = asyncio.create_task(self._drain(web))
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait((drained, at_once), return_when=asyncio.FIRST_COMPLETED)
        await _cancel(drained, at_once)

    async def _drain(self, web: "asyncio.Task[None]") -> None:
        """Requests are refused from now on; connections are taken until the open requests are over."""
        self._metrics.ending()
        drained = asyncio.create_task(self._engine.drain(self._settings.shutdown_timeout))
        try:
            await asyncio.sleep(0)  # the engine has begun to refuse before it is told
            seconds = self._settings.shutdown_timeout
            self._tell(f"ending: open requests get {seconds:g} s; a second signal or Ctrl-C ends them at once")
            await drained
        finally:
            await _cancel(drained)
        self._web.should_exit = True
        await asyncio.wait((web,), timeout=GRACE_SECONDS)


class _Web(uvicorn.Server):
    """uvicorn without its own idea of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _web_config(app: object, settings: ServeSettings) -> uvicorn.Config:
    logs = copy.deepcopy(LOGGING_CONFIG)
    for handler in logs["handlers"].values():
        handler["stream"] = "ext://sys.stderr"
    bounds = Bounds(settings.max_head_bytes, settings.client_timeout, connections_at_most())
    for formatter in logs["formatters"].values():
        formatter["fmt"] = f"%(asctime)s {formatter['fmt']}"
    level = "debug" if settings.log_level == "trace" else settings.log_level
    logs["loggers"]["pelton"] = {"handlers": ["default"], "level": level.upper(), "propagate": False}
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="none",  # it runs in ours
        http=bounds.protocol(),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=logs,
        log_level=settings.log_level,
        access_log=not settings.disable_access_log,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
    )
    # Its lines about starting and ending are ours to say.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger("uvicorn.error").level))
    return config


def sampling_line(chosen: Effective) -> str:
    """What is drawn from where a request says nothing: each value with its origin, those of the general default only
    where they say how to draw.
    """
    values = {field.name: getattr(chosen.params, field.name) for field in fields(SamplingParams)}
    told = [name for name in values if name in DRAWING or chosen.origins[name] != GENERAL]
    return ", ".join(f"{name} {values[name]} ({chosen.origins[name]})" for name in told)


async def _cancel(*tasks: "asyncio.Task[object]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run(config: EngineConfig, settings: ServeSettings, listening: Listening, tell: Tell, began: float) -> None:
    """Serves until SIGTERM or Ctrl-C, then returns; PeltonError where it cannot. `began`: by the system clock."""

    async def serve() -> None:
        await Server(config, settings, listening, tell).run(began, SystemClock())

    uvloop.run(serve())
