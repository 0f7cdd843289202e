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
    Gone,
    Outbound,
    Ready,
    Shutdown,
    Start,
    StartFailed,
    config_text,
    encode,
)

ENGINE_MODULE = "pelton.engine.process.loop"
State = Literal["starting", "running", "restarting", "stopped"]

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Seconds: `hang` without a message while there is work, after which the process is killed.

    `delays` before each attempt to start it again, the last one for all further ones; a life of `healthy` seconds
    begins with the first delay again. After `attempts` in a row that did not get the model loaded, no more are made.
    """

    hang: float = 120.0
    delays: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
    healthy: float = 60.0
    attempts: int = 5
    close: float = 5.0


class Host(Protocol):
    """Who uses the engine process."""

    @property
    def busy(self) -> bool:
        """Whether a message of the engine is to be expected."""
        ...

    def receive(self, message: Outbound) -> None: ...

    def died(self, cause: str, remedy: str) -> None:
        """The process is gone with all it was working on; `cause` is a sentence without its end."""
        ...

    def restarted(self) -> None: ...


class Supervisor:
    """`error`: why no engine process runs, in state "stopped" after failed attempts."""

    def __init__(self, config: EngineConfig, watch: Watch, clock: Clock, module: str) -> None:
        self.state: State = "starting"
        self.error: PeltonError | None = None
        self._config = config
        self._host: Host | None = None
        self._watch = watch
        self._clock = clock
        self._child: Child | None = None
        self._launcher = Launcher(module)
        self._ready: asyncio.Future[Ready] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._tries = 0
        self._since = 0.0
        self._reason = ""
        self._heard = 0.0

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
        was, self.state = self.state, "stopped"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        child, self._child = self._child, None
        if child is None:
            self._launcher.close()
            return
        if was != "running":  # it does not listen yet
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
        except PeltonError:
            self._child = None
            child.kill()
            await child.gone()
            child.close()
            raise
        return ready

    def _receive(self, message: Outbound) -> None:
        self._heard = self._clock.now()
        starting = self._ready is not None and not self._ready.done()
        match message:
            case Ready():
                if starting and self._ready is not None:
                    self._ready.set_result(message)
                    self.state, self._since = "running", self._clock.now()
            case StartFailed(failure=failure):
                if starting and self._ready is not None:
                    self._ready.set_exception(failure.error())
            case Gone(reason=reason):
                self._reason = self._reason or reason
                self._tries += 1  # whoever ended it may be about to end this process too: no hurry
            case _ if self._host is not None:
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
        _log.error("%s; %s", cause, child.flight())
        child.close()
        self._tries += 1
        self.state = "stopped" if self._closing else "restarting"
        if self._host is not None:
            again = (
                "it is not started again." if self._closing else "it is being started again: send the request again."
            )
            self._host.died(cause, again)
        if not self._closing:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(asyncio.get_running_loop().create_task(self._restart()))

    async def _restart(self) -> None:
        failed = 0
        while not self._closing:
            await asyncio.sleep(self._watch.delays[min(self._tries, len(self._watch.delays)) - 1])
            try:
                await self._launch()
            except PeltonError as error:
                failed += 1
                self._tries += 1
                _log.error("The engine process could not be started again (attempt %d): %s", failed, error)
                if failed >= self._watch.attempts:
                    self.state, self.error = "stopped", error
                    return
                continue
            _log.warning("The engine process runs again.")
            if self._host is not None:
                self._host.restarted()
            return

    async def _watch_hangs(self, host: Host) -> None:
        """Kills a process that is to say something and does not."""
        pause = min(1.0, self._watch.hang / 4)
        quiet_since = before = self._clock.now()
        while True:
            await asyncio.sleep(pause)
            now = self._clock.now()
            stalled = now - before > 2 * pause + 1.0  # this process itself stood still, and may not have listened
            if stalled or self.state != "running" or not host.busy:
                quiet_since = now
            quiet_since = max(quiet_since, self._heard)
            before = now
            if self.state == "running" and now - self._since >= self._watch.healthy:
                self._tries = 0
            if now - quiet_since < self._watch.hang or self._child is None:
                continue
            self._reason = f"killed: it was not heard of for {now - quiet_since:.0f} seconds"
            _log.error("The engine process is not heard of any more; %s", self._child.flight())
            self._child.kill()
            quiet_since = now


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
