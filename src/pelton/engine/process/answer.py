"""AsyncAnswer: what comes of one request, as an async iterator, for whoever asked for it.

It never makes the engine or other answers wait: what is not read is merged into the next piece. Invariant: a request
whose AsyncAnswer nobody holds any more leaves the engine.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from pelton.core.errors import PeltonError
from pelton.core.request import RequestOutput
from pelton.engine.outputs import Answer, StreamPiece


class Mailbox:
    """An Answer in the making and the events that wake its readers. `refused`: the engine did not take the request."""

    __slots__ = ("answer", "ended", "news", "refused")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.news = asyncio.Event()
        self.ended = asyncio.Event()
        self.refused: PeltonError | None = None

    def end(self) -> None:
        """Nothing more comes."""
        self.news.set()
        self.ended.set()


class AsyncAnswer:
    """One reader at a time may iterate; pieces come one for each of the n answers that has news.

    A reader that is cancelled while it waits may go on later: a request is aborted by `abort`, `aclose`, a cancelled
    `output`, or when the AsyncAnswer is let go of.
    """

    def __init__(self, mailbox: Mailbox, abort: Callable[[Mailbox], None]) -> None:
        self._mailbox = mailbox
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[StreamPiece] = deque()
        self._over = False

    @property
    def answer(self) -> Answer:
        """The answer so far."""
        return self._mailbox.answer

    def __aiter__(self) -> "AsyncAnswer":
        return self

    async def __anext__(self) -> StreamPiece:
        """What came since the last pieces, as soon as there is something; the last one has the whole output.

        A request that failed ends with a piece whose output has an `error`. Raises the RequestError or CapacityError
        of one that the engine could not take.
        """
        while True:
            if self._pieces:
                return self._pieces.popleft()
            mailbox = self._mailbox
            if mailbox.refused is not None:
                raise mailbox.refused
            if self._over:
                raise StopAsyncIteration
            mailbox.news.clear()
            self._pieces.extend(self.answer.pieces())
            self._over = self.answer.finished
            if not self._pieces and not self._over:
                await mailbox.news.wait()

    async def output(self) -> RequestOutput:
        """The whole, once it is finished; raises as iterating does. Cancelling it aborts the request."""
        try:
            await self._mailbox.ended.wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._mailbox.refused is not None:
            raise self._mailbox.refused
        return self.answer.output()

    def abort(self) -> None:
        """Takes the request out of the engine within one step; what it has given so far ends with "abort"."""
        if not self._mailbox.ended.is_set():
            self._abort(self._mailbox)

    async def aclose(self) -> None:
        """Aborts the request, if it is not over, and ends the iteration."""
        self.abort()
        self._over = True
        self._pieces.clear()

    def __del__(self) -> None:
        # Garbage is collected in any thread, and at any point of the event loop's own code.
        if not self._mailbox.ended.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort, self._mailbox)
