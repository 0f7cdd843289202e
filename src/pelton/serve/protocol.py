"""The HTTP protocol: uvicorn's, with bounds for clients that send too much, too slowly, or ahead of their turn.

It knows no route. Invariant: while an answer is in the making the connection is read, so that its end is noticed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httptools
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pelton.core.errors import OverloadedError
from pelton.serve.errors import http_error
from pelton.serve.request_id import HEADER

LOG = logging.getLogger("pelton.serve")
LINGER_SECONDS = 1.0  # for a client that still sends, to read why nobody listens


@dataclass(slots=True)
class Bounds:
    """`head_bytes`: of a request's URL and headers; `seconds`: to send them, and of silence in a body, 0: any;
    `connections`: open at once. `full`: whether it was told that there are as many.
    """

    head_bytes: int
    seconds: float
    connections: int
    full: bool = False

    def protocol(self) -> "partial[Protocol]":
        """What makes the protocol of a connection, for uvicorn."""
        return partial(Protocol, self)

    def tell_full(self) -> None:
        """Once, until there are fewer again."""
        if not self.full:
            LOG.warning("%d connections are open, and more are refused (ulimit -n bounds them)", self.connections)
        self.full = True


class Line(asyncio.Transport):
    """A connection as uvicorn sees it: what is written to a client that left is dropped.

    `unread`: the client is not through with what it sends. Closing leaves it a moment then, as it would otherwise be
    cut off before it has read its answer.
    """

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._linger: asyncio.TimerHandle | None = None
        self._ended = False
        self.unread = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._ended or self._inner.is_closing()

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        if not self.is_closing():
            self._inner.write(data)

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def close(self) -> None:
        if self.is_closing():
            return
        self._ended = True
        if self.unread and self._inner.can_write_eof():
            self._inner.write_eof()
            self._inner.resume_reading()
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._inner.close)
        else:
            self._inner.close()

    def lost(self) -> None:
        """The connection is gone."""
        self._ended = True
        if self._linger is not None:
            self._linger.cancel()


class Patience:
    """How long a client is waited for: `over` is called once it is. No seconds: for ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, over: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._timer is not None

    def begin(self) -> None:
        """From now on; also where it had begun before."""
        self.end()
        if self._seconds > 0:
            self._timer = self._loop.call_later(self._seconds, self._over)

    def end(self) -> None:
        """Nothing is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Head:
    """How much came of a request's head, or of what stands behind a body, whether the parser has told of it or not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._told = 0
        self._fed = 0
        self._other = False  # the parser told of something else since it was fed
        self.open = False  # it has begun, and is not complete

    def begin(self) -> None:
        """The next one."""
        self._told = self._fed = 0
        self.open = True

    def other(self) -> None:
        """The parser told of a piece of a body, or of an end."""
        self._fed = 0
        self._other = True

    def fed(self, size: int) -> HTTPException | None:
        """The parser was given so many bytes; what is wrong if it keeps too many of them to itself."""
        if self._other:
            self._other = False
            return None
        self._fed += size
        return self._wrong(431) if self._fed > self._most else None

    def count(self, size: int, status: int) -> HTTPException | None:
        """The parser told of so many bytes of a head; what is wrong if they are too many."""
        self._told += size
        return self._wrong(status) if self._told > self._most else None

    def _wrong(self, status: int) -> HTTPException:
        return HTTPException(status, f"URL and headers may have {self._most} bytes together.")


class Protocol(HttpToolsProtocol):
    """One connection. Requests that come before the answer to the one in front of them are not taken: it is answered,
    and the connection closed.
    """

    def __init__(self, bounds: Bounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._line: Line
        self._patience = Patience(self.loop, bounds.seconds, self._too_slow)
        self._head = Head(bounds.head_bytes)
        self._ahead = False  # more came than the request that is being answered
        self._wrong: HTTPException | None = None  # why the parser was stopped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._line = Line(transport)
        super().connection_made(self._line)
        if len(self.connections) <= self._bounds.connections:
            self._patience.begin()
            return
        self._bounds.tell_full()
        error = OverloadedError("Too many connections are open.", "Send the request again later.")
        self._line.write(answer_of(error, self.server_state.default_headers))
        self._line.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.end()
        self._line.lost()
        if len(self.connections) <= self._bounds.connections:
            self._bounds.full = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ahead or self._line.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._answering if self._in_body else not (self._answering or self._patience.running):
            self._patience.begin()
        wrong: HTTPException | None = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as if it had not been asked for
        except httptools.HttpParserError:
            wrong = self._wrong or HTTPException(400, "This is no HTTP. Send a request of HTTP/1.1.")
        wrong = wrong or self._head.fed(len(data))
        if wrong is not None:
            self._refuse(wrong)

    def on_message_begin(self) -> None:
        if self._answering:
            raise _NotTakenError
        self._head.begin()
        self._line.unread = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._wrong = self._head.count(len(url), 414)
        if self._wrong is not None:
            raise _NotTakenError
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._wrong = self._head.count(len(name) + len(value) + 4, 431)
        if self._wrong is not None:
            raise _NotTakenError
        if self._head.open:  # not behind the body, where nobody looks for one
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head.open = False
        self._patience.begin()

    def on_body(self, body: bytes) -> None:
        self._head.other()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head.other()
        self._line.unread = False
        super().on_message_complete()
        self._patience.end()
        if not self._answering:
            self._patience.begin()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._line.unread and not self._line.is_closing():
            self._patience.begin()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _in_body(self) -> bool:
        return self._line.unread and not self._head.open

    def _too_slow(self) -> None:
        if self.flow.read_paused:  # it is the server that does not read
            self._patience.begin()
        elif self._line.unread:
            self._refuse(HTTPException(408, f"Its head has {self._bounds.seconds:g} s, as has each pause in its body."))
        else:
            self._line.close()

    def _refuse(self, error: HTTPException) -> None:
        """Takes nothing more from this client; what came as a whole is still answered."""
        if self._answering and not self._in_body:
            self._ahead = self._line.unread = True
            self.cycle.keep_alive = False
            return
        self._patience.end()
        if not (self._in_body and self.cycle.response_started):
            self._line.write(answer_of(error, self.server_state.default_headers))
            if self.access_log:
                client = f"{self.client[0]}:{self.client[1]}" if self.client else "a client"
                LOG.info("%s: answered with %d. %s", client, error.status_code, error.detail)
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._line.unread = True
        self._line.close()


def answer_of(error: Exception, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The error as a whole HTTP answer, outside of any app; `headers`: those that every answer has."""
    response = http_error(error).response()
    status = HTTPStatus(response.status_code)
    more = [(HEADER.lower().encode(), uuid4().hex.encode()), (b"connection", b"close")]
    lines = [b"%b: %b" % header for header in (*headers, *response.raw_headers, *more)]
    return b"\r\n".join([f"HTTP/1.1 {status.value} {status.phrase}".encode(), *lines, b"", bytes(response.body)])


class _NotTakenError(Exception):
    """Stops the parser."""
