"""Answers on their way to the client: whole or as events, with signs of life and an eye on the client.

It knows no JSON. Invariant: however an answer ends (the client left, the engine failed), its requests are out of the
engine when it is over.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from pelton.core.errors import EngineDeadError, PeltonError, RequestError
from pelton.core.request import RequestOutput
from pelton.engine.outputs import Answer, StreamPiece
from pelton.serve.errors import AnswerAbortedError, AnswerFailedError, http_error
from pelton.serve.replies.head import DONE
from pelton.serve.schema.body import told
from pelton.serve.service import Call, OpenAnswer, Service

KEEP_ALIVE = b": keep-alive\n\n"
IGNORED = b"x-pelton-ignored"
CACHE = b"x-pelton-cache"
_FAILED = ("error", "abort")


class Reply:
    """The ASGI answer to one call. Errors before its first byte are raised, later ones are events."""

    def __init__(self, service: Service, call: Call) -> None:
        self._service = service
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = self._service.engine.submit_all(self._call.requests)
        work = self._stream(answers, send) if self._call.stream else self._whole(answers, send)
        try:
            await done_before_client_leaves(work, receive)
        finally:
            for answer in answers:
                await answer.aclose()

    async def _whole(self, answers: Sequence[OpenAnswer], send: Send) -> None:
        outputs = await asyncio.gather(*(answer.output() for answer in answers))
        for output in outputs:
            for completion in output.outputs:
                if completion.finish_reason in _FAILED:
                    raise self._failure(completion.finish_reason, output)
        body = self._call.writer.whole(outputs)
        headers = [*self._headers(b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += cache_headers(outputs)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, answers: Sequence[OpenAnswer], send: Send) -> None:
        events = Events(send, self._headers(b"text/event-stream; charset=utf-8"))
        done = DONE if self._call.marked else b""
        alive = asyncio.create_task(events.keep_alive(self._service.settings.sse_keep_alive_interval))
        try:
            outputs = await self._send_pieces(answers, events)
            await events.end(self._call.writer.last(outputs) + done)
        except PeltonError as error:
            if not events.begun:
                raise
            await events.end(http_error(error).event() + done)
        except Exception as error:
            if events.begun:
                await events.end(http_error(error).event() + done)
            raise
        finally:
            await _cancelled(alive)

    async def _send_pieces(self, answers: Sequence[OpenAnswer], events: "Events") -> list[RequestOutput]:
        """The whole outputs, one for each answer, once all pieces are sent."""
        outputs: dict[int, RequestOutput] = {}
        writer = self._call.writer
        async with aclosing(pieces_of(answers)) as pieces:
            async for place, piece in pieces:
                answer: Answer = answers[place].answer
                if piece.finish_reason in _FAILED:
                    raise self._failure(piece.finish_reason, answer.output())
                if piece.output is not None:
                    outputs[place] = piece.output
                if not events.begun and len(answers) == 1:
                    events.headers += cache_headers([answer.output()])
                await events.send(writer.piece(place, piece, answer))
        return [outputs[place] for place in range(len(answers))]

    def _failure(self, reason: str | None, output: RequestOutput) -> PeltonError:
        if reason == "abort":
            return AnswerAbortedError("The request was ended: the server shuts down.", "Send it again later.")
        error = output.error or "The engine could not finish this answer."
        if output.error_code is not None:
            return RequestError(error, code=output.error_code)
        if self._service.engine.draining:
            return AnswerAbortedError(error, "The server shuts down; send the request again later.")
        if not self._service.running:
            return EngineDeadError(error, "Send the request again in a few seconds.")
        return AnswerFailedError(error)

    def _headers(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", kind)]
        if self._call.stream:
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        if self._call.ignored:
            headers.append((IGNORED, told(self._call.ignored).encode("ascii", "backslashreplace")))
        return headers


class Events:
    """A stream of events; its first byte starts the answer. Two that send at once take turns.

    `headers` may be added to until it is `begun`.
    """

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = headers
        self._send = send
        self._turn = asyncio.Lock()
        self._last = self._now()
        self._over = False
        self.begun = False

    async def send(self, data: bytes) -> None:
        """Events as they stand."""
        await self._write(data, more=True)

    async def end(self, data: bytes) -> None:
        """The last events; nothing may follow."""
        await self._write(data, more=False)

    async def keep_alive(self, interval: float) -> None:
        """Comments in times of silence, until cancelled; none for an interval of 0."""
        while interval > 0:
            silent = self._now() - self._last
            if silent < interval:
                await asyncio.sleep(interval - silent)
            else:
                await self._write(KEEP_ALIVE, more=True)

    async def _write(self, data: bytes, *, more: bool) -> None:
        async with self._turn:
            if self._over:
                return
            self._over = not more
            self._last = self._now()
            if not self.begun:
                self.begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self.headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def cache_headers(outputs: Sequence[RequestOutput]) -> list[tuple[bytes, bytes]]:
    """How much of the one prompt was cached, and why no more; nothing for several.

    Of others' prompts it tells nothing but that there are some: neither their tokens, nor that they are in another
    namespace, which would be a way to guess them.
    """
    if len(outputs) != 1 or (lookup := outputs[0].prefix_lookup) is None:
        return []
    kind = "unseen" if lookup.kind == "namespace" else lookup.kind
    told = f"cached={outputs[0].num_cached_tokens}; prompt={len(outputs[0].prompt_token_ids)}; reason={kind}"
    return [(CACHE, f"{told}; index={lookup.index}".encode())]


async def pieces_of(answers: Sequence[OpenAnswer]) -> AsyncGenerator[tuple[int, StreamPiece], None]:
    """(place of the answer, piece) as they come, from all answers; what one of them raises ends it."""
    if len(answers) == 1:
        async for piece in answers[0]:
            yield 0, piece
        return
    # Bounded, so that a slow client makes pieces grow instead of their number.
    queue: asyncio.Queue[tuple[int, StreamPiece] | BaseException | None] = asyncio.Queue(len(answers))
    tasks = [asyncio.create_task(_feed(place, answer, queue)) for place, answer in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            news = await queue.get()
            if isinstance(news, BaseException):
                raise news
            if news is None:
                left -= 1
            else:
                yield news
    finally:
        for task in tasks:
            await _cancelled(task)


async def done_before_client_leaves(work: Coroutine[None, None, None], receive: Receive) -> None:
    """Runs `work` to its end, or until the client leaves, which cancels it. Raises what it raises."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await _cancelled(gone)
        await _cancelled(task)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _feed(
    place: int, answer: OpenAnswer, queue: "asyncio.Queue[tuple[int, StreamPiece] | BaseException | None]"
) -> None:
    try:
        async for piece in answer:
            await queue.put((place, piece))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
        raise


async def _cancelled(task: "asyncio.Task[None]") -> None:
    """Cancels the task and waits for its end; what it raised was told by whoever waited for it."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
