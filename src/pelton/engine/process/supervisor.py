"""Supervisor: starts the engine process, sees it crash or hang, and starts it again. It knows no requests.

Invariant: at most one engine process runs, and none once `close` is over.
"""

import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from typing import Literal, Protocol

from pelton.core.clock import Clock
from pelton.core.config import EngineConfig
from pelton.core.errors import EngineDeadError, PeltonError
from pelton.engine.process.child import Child, Launcher
from pelton.engine.process.messages import (
    Finishing,
    Gone,
    Outbound,
    Ready,
    Shutdown,
    Start,
    StartFailed,
    Step,
    config_text,
    encode,
)
from pelton.engine.process.pace import Pace

ENGINE_MODULE = "pelton.engine.process.loop"
State = Literal["starting", "running", "restarting", "stopped"]
LISTENS = ("running", "finishing")

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Seconds: `hang` without a message while there is work, after which the process is killed; see Pace for steps that
    need more.

    `delays` before each attempt to start it again, the last one for all further ones; a life of `healthy` seconds
    begins with the first delay again. After `attempts` in a row that did not get the model loaded, no more are made.
    `finish`: given to the open requests of a process that a signal has told to end.
    """

    hang: float = 120.0
    delays: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
    healthy: float = 60.0
    attempts: int = 5
    finish: float = 30.0
    close: float = 5.0


class Host(Protocol):
    """Who uses the engine process."""

    @property
    def busy(self) -> bool:
        """Whether a message of the engine is to be expected."""
        ...

    def receive(self, message: Outbound) -> None: ...

    def died(self, cause: str, now: str) -> None:
        """The process is gone with all it was at. `cause`: a sentence without its end; `now`: how it goes on."""
        ...

    def restarted(self) -> None: ...


class Supervisor:
    """`error`: why no engine process runs, in state "stopped" after failed attempts."""

    def __init__(self, config: EngineConfig, watch: Watch, clock: Clock, module: str) -> None:
        self.error: PeltonError | None = None
        self._state: State | Literal["finishing"] = "starting"
        self._config = config
        self._host: Host | None = None
        self._watch = watch
        self._pace = Pace(watch.hang)
        self._clock = clock
        self._child: Child | None = None
        self._launcher = Launcher(module)
        self._ready: asyncio.Future[Ready] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._tries = 0
        self._since = 0.0
        self._reason = ""

    @property
    def state(self) -> State:
        """What the process is at. One that finishes on its own account takes no requests; the next one will."""
        if self._state == "finishing":
            return "running" if self._closing else "restarting"
        return self._state

    @property
    def pid(self) -> int | None:
        """The engine process' id."""
        return self._child.pid if self._child else None

    async def start(self) -> Ready:
        """The first start; over once the model is loaded. What makes that impossible is raised."""
        return await self._launch()

    def watch_over(self, host: Host) -> None:
        """From now on `host` is told what the process says and when it dies, and one that hangs is killed."""
        self._host = host
        self._tasks.append(asyncio.get_running_loop().create_task(self._watch_hangs(host)))

    def send(self, message: bytes) -> None:
        """An encoded message is on its way; one to a process that is gone is lost with it."""
        if self._child is not None:
            self._child.send(message)

    def expect_end(self) -> None:
        """From now on a process that ends is not started again."""
        self._closing = True

    async def close(self) -> None:
        """Ends the process: in order where it listens, else by force."""
        self._closing = True
        was, self._state = self._state, "stopped"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        child, self._child = self._child, None
        if child is None:
            self._launcher.close()
            return
        if was not in LISTENS:  # it does not listen yet
            child.kill()
        child.send(encode(Shutdown()))
        try:
            async with asyncio.timeout(self._watch.close):
                await child.gone()
        except TimeoutError:
            child.kill()
            await child.gone()
        finally:
            child.kill()
            self._launcher.close()
        child.close()

    async def _launch(self) -> Ready:
        """A process with the model loaded. PeltonError, and no process, where that fails."""
        self._reason = ""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        child = self._child = await Child.launch(self._launcher, self._receive, self._ended)
        try:
            child.send(encode(Start(config_text(self._config), os.getpid(), _log.getEffectiveLevel())))
            ready = await self._ready
        except Exception:
            self._ready.cancel()
            self._child = None
            child.kill()
            await child.gone()
            child.close()
            raise
        return ready

    def _receive(self, message: Outbound) -> None:
        self._pace.heard = self._clock.now()
        starting = self._ready is not None and not self._ready.done()
        match message:
            case Ready():
                if starting and self._ready is not None:
                    self._pace.loaded(message.start_report().weight_bytes)
                    self._ready.set_result(message)
                    self._state, self._since = "running", self._clock.now()
            case StartFailed(failure=failure):
                if starting and self._ready is not None:
                    self._ready.set_exception(failure.error())
            case Finishing():
                self._state, self._since = "finishing", self._clock.now()
                self._tries += 1  # whoever ends it may be about to end this process too: no hurry
            case Gone(reason=reason):
                self._reason = self._reason or reason
            case _ if self._host is not None:
                if isinstance(message, Step):
                    self._pace.saw(message.stats.step_tokens, message.now - message.began)
                self._host.receive(message)
            case _:
                pass

    def _ended(self, child: Child) -> None:
        """The process is gone, whoever wanted that."""
        how = _how(child.code or 0)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(
                EngineDeadError(f"The engine process ended ({how}) while it loaded the model.", "See its last lines.")
            )
            return
        if child is not self._child:
            return
        self._child = None
        cause = f"The engine process ended ({self._reason or how})"
        # One that a signal has reached while we end too did what it was to do.
        if not (self._closing and self._reason):
            _log.error("%s; %s", cause, child.flight())
        child.close()
        self._tries += 1
        self._state = "stopped" if self._closing else "restarting"
        if self._host is not None:
            self._host.died(cause, "it is not started again." if self._closing else "it is being started again.")
        if not self._closing:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.get_running_loop().create_task(self._restart()))

    async def _restart(self) -> None:
        failed = 0
        while not self._closing:
            await asyncio.sleep(self._watch.delays[min(self._tries, len(self._watch.delays)) - 1])
            try:
                await self._launch()
            except Exception as error:  # noqa: BLE001 - logged, and counted: nobody else would see it
                failed += 1
                self._tries += 1
                known = isinstance(error, PeltonError)
                _log.error(
                    "The engine process could not be started again (attempt %d): %s",
                    failed,
                    error if known else repr(error),
                    exc_info=None if known else error,
                )
                if failed >= self._watch.attempts:
                    self._state, self.error = "stopped", error if isinstance(error, PeltonError) else _bug(error)
                    return
                continue
            _log.warning("The engine process runs again.")
            if self._host is not None:
                self._host.restarted()
            return

    async def _watch_hangs(self, host: Host) -> None:
        """Kills a process that is to say something and does not, or to end and does not."""
        pause = min(1.0, self._watch.hang / 4, self._watch.finish / 4)
        quiet_since = before = self._clock.now()
        while True:
            await asyncio.sleep(pause)
            now = self._clock.now()
            stalled = now - before > 2 * pause + 1.0  # this process itself stood still, and may not have listened
            if stalled or self._state not in LISTENS or not host.busy:
                quiet_since = now
            quiet_since = max(quiet_since, self._pace.heard)
            before = now
            if self.state == "running" and now - self._since >= self._watch.healthy:
                self._tries = 0
            child = self._child
            if child is None:
                continue
            if self._overdue(now):
                self._kill(
                    child, f"killed: told to end by a signal, it was not over after {self._watch.finish:g} seconds"
                )
                quiet_since = now
            elif now - quiet_since >= self._watch.hang:
                flight = child.flight()
                if not flight.running or now - quiet_since >= self._pace.patience(flight.tokens):
                    self._kill(child, f"killed: it was not heard of for {now - quiet_since:.0f} seconds")
                    quiet_since = now

    def _overdue(self, now: float) -> bool:
        """Whether a process that was told to end has had its time. Where this one ends too, `drain` has its own."""
        waits = self._state == "finishing" and not self._closing and not self._reason
        return waits and now - self._since >= self._watch.finish

    def _kill(self, child: Child, reason: str) -> None:
        self._reason = reason
        _log.error("The engine process is %s; %s", reason, child.flight())
        child.kill()


def _bug(error: Exception) -> EngineDeadError:
    return EngineDeadError(f"The engine process cannot be started: {type(error).__name__}: {error}.")


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
