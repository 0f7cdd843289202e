"""Child: one life of the engine process, seen from its parent's event loop: messages both ways, and how it ended.

It starts nothing again and knows no requests. Invariant: `ended` is told once, after the last message.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import cast

from pelton.core.environment import child_environment
from pelton.core.errors import EngineDeadError
from pelton.engine.process.flight import Flight, FlightRecord, shared_memory
from pelton.engine.process.messages import Frames, Outbound, decode_outbound

LAST_WORDS_SECONDS = 1.0  # between the end of the process and that of its socket, or the other way round
Receive = Callable[[Outbound], None]


class Launcher:
    """Starts `python -m module`, always from the same thread, which lives as long as this.

    Processes inherit that thread's niceness, whatever becomes of other threads', and are killed when it ends.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pelton-launcher")

    def start(self, theirs: int, memory: int, given: ExitStack) -> "Future[subprocess.Popen[bytes]]":
        """A process that has the socket and the memory, by descriptor; `given` closes them here, however it goes."""
        try:
            return self._thread.submit(self._start, theirs, memory, given)
        except RuntimeError:
            given.close()
            raise

    def close(self) -> None:
        """Processes that still run are killed."""
        self._thread.shutdown(wait=False)

    def _start(self, theirs: int, memory: int, given: ExitStack) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        with given:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs), str(memory)],
                pass_fds=(theirs, memory),
                stdin=subprocess.DEVNULL,
                env=child_environment(PYTHONPATH=path),
            )


class Connection(asyncio.Protocol):
    """This process' end of the socket. Messages come whole and in order; `lost` is told once, after the last."""

    def __init__(self, receive: Receive, lost: Callable[[], None]) -> None:
        self.open = False
        self._receive = receive
        self._lost = lost
        self._frames = Frames()
        self._transport: asyncio.WriteTransport

    def send(self, message: bytes) -> None:
        """An encoded message is on its way, behind those before it; one to a process that has ended is lost."""
        if self.open:
            self._transport.write(message)

    def cut(self) -> None:
        """Waits for no more messages."""
        if self.open:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.WriteTransport, transport), True  # uvloop's is by duck typing only

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._receive(decode_outbound(body))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._lost()


class Child:
    """`code`: the exit status of the process, negative for a signal's number; None while it runs."""

    def __init__(self, receive: Receive, ended: Callable[["Child"], None]) -> None:
        self.code: int | None = None
        self._ended = ended
        self._connection = Connection(receive, self._cut_off)
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._process: subprocess.Popen[bytes]
        self._flight: FlightRecord
        self._watched: int

    @classmethod
    async def launch(cls, launcher: Launcher, receive: Receive, ended: Callable[["Child"], None]) -> "Child":
        """A process and the other end of its socket. EngineDeadError where none can be started."""
        child = cls(receive, ended)
        with ExitStack() as undo:
            try:
                await child._start(launcher, undo)
            except (OSError, RuntimeError) as error:  # a limit of the system: files, memory, processes, threads
                raise EngineDeadError(f"The engine process cannot be started: {error}.") from error
            undo.pop_all()
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: bytes) -> None:
        """An encoded message is on its way; one to a process that has ended is lost."""
        self._connection.send(message)

    def kill(self) -> None:
        """Ends the process wherever it is."""
        if self.code is None:
            self._process.send_signal(signal.SIGKILL)

    async def gone(self) -> None:
        """Waits until the process has ended and its last message was received."""
        await asyncio.shield(self._over)

    def flight(self) -> Flight:
        """The last step that the process began."""
        return self._flight.read()

    def close(self) -> None:
        """Lets go of what is left of a process that has ended."""
        self._flight.close()

    async def _start(self, launcher: Launcher, undo: ExitStack) -> None:
        """The parts of `launch`, each with what undoes it where a later one fails."""
        with ExitStack() as given:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            given.callback(theirs.close)
            memory = shared_memory()
            given.callback(os.close, memory)
            self._flight = FlightRecord(memory)
            undo.callback(self._flight.close)
            starting = launcher.start(theirs.fileno(), memory, given.pop_all())
        try:
            self._process = await asyncio.shield(asyncio.wrap_future(starting))
        except asyncio.CancelledError:  # the launcher's thread sees to it, also if the loop ends meanwhile
            starting.add_done_callback(_discard)
            raise
        undo.callback(_end, self._process)
        self._watched = os.pidfd_open(self._process.pid)
        undo.callback(os.close, self._watched)
        await self._loop.create_unix_connection(lambda: self._connection, sock=ours)
        undo.callback(self._connection.cut)
        self._loop.add_reader(self._watched, self._exited)

    def _cut_off(self) -> None:
        if self.code is None:
            # It has nothing to say any more. One that does not end by itself now is of no use.
            self._loop.call_later(LAST_WORDS_SECONDS, self.kill)
        self._finish()

    def _exited(self) -> None:
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        self.code = self._process.wait()
        if self._connection.open:
            # Somebody the process has started may hold the socket open.
            self._loop.call_later(LAST_WORDS_SECONDS, self._connection.cut)
        self._finish()

    def _finish(self) -> None:
        if self.code is not None and not self._connection.open and not self._over.done():
            self._over.set_result(None)
            self._ended(self)


def _discard(starting: "Future[subprocess.Popen[bytes]]") -> None:
    """Ends a process that nobody waits for any more."""
    if starting.exception() is None:
        _end(starting.result())


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
