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
from concurrent.futures import ThreadPoolExecutor
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

    def start(self, theirs: socket.socket, memory: int) -> "asyncio.Future[subprocess.Popen[bytes]]":
        """A process that has the socket and the memory; here they get closed."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._start, theirs, memory)

    def close(self) -> None:
        """Processes that still run are killed."""
        self._thread.shutdown(wait=False)

    def _start(self, theirs: socket.socket, memory: int) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), str(memory)],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
                env=child_environment(PYTHONPATH=path),
            )
        finally:
            theirs.close()
            os.close(memory)


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
        ours, theirs = socket.socketpair()
        memory = shared_memory()
        child._flight = FlightRecord(memory)
        starting = launcher.start(theirs, memory)
        try:
            child._process = await asyncio.shield(starting)
            await child._loop.create_unix_connection(lambda: child._connection, sock=ours)
        except OSError as error:
            ours.close()
            raise EngineDeadError(f"The engine process cannot be started: {error}.") from error
        except asyncio.CancelledError:
            ours.close()
            starting.add_done_callback(_discard)
            raise
        child._watched = os.pidfd_open(child._process.pid)
        child._loop.add_reader(child._watched, child._exited)
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


def _discard(starting: "asyncio.Future[subprocess.Popen[bytes]]") -> None:
    """Ends a process that nobody waits for any more."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
        starting.result().wait()
