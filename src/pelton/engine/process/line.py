"""Line: the engine process' end of the socket to its parent. Whoever steps is never kept waiting by a slow reader.

Invariant: messages arrive whole and in order; what the socket does not take now is kept and goes out later.
"""

import select
import signal
import socket
from contextlib import suppress
from math import ceil

from pelton.engine.process.messages import Frames, Inbound, Outbound, decode_inbound, encode

CHUNK = 1 << 18


class Line:
    """Not thread-safe, but for `wake`. A signal that has a Python handler ends `receive`'s waiting."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)
        self._frames = Frames()
        self._unsent = bytearray()
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker  # open as long as signals write to it
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def fileno(self) -> int:
        """The socket's, which is readable once there is something to receive."""
        return self._socket.fileno()

    def receive(self, *, wait: bool, seconds: float | None = None) -> list[Inbound]:
        """The messages that are there; with `wait`, once there is one, or a signal, or somebody calls `wake`, or after
        so many seconds. EOFError: the parent is gone.
        """
        if wait:
            self._wait(seconds)
        self._flush()
        messages: list[Inbound] = []
        while True:
            try:
                data = self._socket.recv(CHUNK)
            except BlockingIOError:
                return messages
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError
            messages += [decode_inbound(body) for body in self._frames.feed(data)]
            if len(data) < CHUNK:
                return messages

    def send(self, message: Outbound) -> None:
        """The message is on its way; never waits. A parent that is gone is told by `receive`."""
        self._unsent += encode(message)
        self._flush()

    def wake(self) -> None:
        """Ends the waiting in `receive`, or the next one. For other threads."""
        with suppress(OSError):  # it is full of that already, or closed
            self._waker.send(b"\0")

    def finish(self, seconds: float) -> None:
        """Waits, at most this long, until all is sent."""
        if self._unsent:
            self._socket.settimeout(seconds)
            try:
                self._socket.sendall(self._unsent)
            except OSError:
                return
            self._unsent.clear()

    def close(self) -> None:
        """Nothing more is sent or received; signals wake nobody any more."""
        signal.set_wakeup_fd(-1)
        for one in (self._socket, self._woken, self._waker):
            one.close()

    def _flush(self) -> None:
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ConnectionError):
                return
            del self._unsent[:sent]

    def _wait(self, seconds: float | None) -> None:
        self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        for fd, _ in self._poll.poll(None if seconds is None else ceil(1000 * seconds)):
            if fd == self._woken.fileno():
                self._woken.recv(CHUNK)
