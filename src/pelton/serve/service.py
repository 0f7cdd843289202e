"""Service: what the routes share. It makes a body into engine requests off the loop where that takes long.

Invariant: of several requests of one call all are in the engine, or none.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from pelton import __version__
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError, RequestError
from pelton.core.request import Request, RequestOutput
from pelton.engine.front import Front
from pelton.engine.outputs import Answer, StreamPiece
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.sampling.effective import Effective
from pelton.serve.errors import AnswerAbortedError
from pelton.serve.metrics import Metrics
from pelton.serve.settings import ServeSettings

LOG = logging.getLogger("pelton.serve")
LONG_BODY = 1 << 15  # bytes from which on reading and tokenising would hold up other streams noticeably
Made = TypeVar("Made")


class OpenAnswer(Protocol):
    """An answer in the making: its pieces, or the end. `aclose` takes it out of the engine; later it does nothing."""

    @property
    def answer(self) -> Answer: ...

    def __aiter__(self) -> AsyncIterator[StreamPiece]: ...

    async def output(self) -> RequestOutput: ...

    def abort(self) -> None: ...

    async def aclose(self) -> None: ...


class ServedEngine(Protocol):
    """What the door needs of an AsyncEngine."""

    @property
    def state(self) -> str: ...

    @property
    def draining(self) -> bool:
        """Whether it takes no more requests, because it is about to end."""
        ...

    @property
    def stats(self) -> EngineStats: ...

    @property
    def front(self) -> Front: ...

    @property
    def limits(self) -> PromptLimits: ...

    @property
    def requests(self) -> RequestMaker: ...

    def submit(self, request: Request) -> OpenAnswer: ...

    async def reset_prefix_cache(self) -> bool: ...


class Writer(Protocol):
    """Makes the answers of one call into the route's JSON."""

    def piece(self, place: int, piece: StreamPiece, answer: Answer) -> bytes:
        """Events for a piece of the answer to the prompt at `place`."""
        ...

    def last(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Events behind the last piece."""
        ...

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body that does not stream."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A checked body: what the engine is to do, and how the answer is told. One request for each prompt."""

    requests: tuple[Request, ...]
    writer: Writer
    stream: bool
    ignored: tuple[str, ...]
    effective: Effective


class Service:
    """The engine and the door's settings, with what every route asks of them."""

    def __init__(self, engine: ServedEngine, settings: ServeSettings, metrics: Metrics) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.fingerprint = f"pelton-{__version__}"
        self._in_threads = 0

    @property
    def running(self) -> bool:
        """Whether the engine takes requests."""
        return self.engine.state == "running" and not self.engine.draining

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called here; the engine has to have started."""
        return self.settings.served_model_names or (self.engine.front.config.model.model,)

    def expect_running(self) -> None:
        """A PeltonError that becomes a 503, unless the engine takes requests."""
        if self.engine.draining:
            raise AnswerAbortedError("The server is shutting down.", "Send the request again later.")
        if not self.running:
            raise EngineDeadError(f"The engine is {self.engine.state}.", "Ask again in a few seconds.")

    def model_name(self, given: str | None) -> str:
        """The name to answer with. RequestError for an unknown name, and see expect_running."""
        self.expect_running()
        if given is None:
            return self.names[0]
        if given not in self.names:
            raise RequestError(
                f"There is no model {given[:100]!r} here.",
                f"Use {self.names[0]!r}.",
                param="model",
                code="model_not_found",
            )
        return given

    async def prepare(self, make: Callable[[bytes], Made], raw: bytes) -> Made:
        """make(raw): here if it is quick, in a thread if it may take long.

        While a long one runs, short ones go to threads too: it may hold the tokenizer's lock.
        """
        # A template of the client's own may take any time.
        slow = len(raw) >= LONG_BODY or self._in_threads > 0 or b'"chat_template"' in raw
        if not slow:
            return make(raw)
        self._in_threads += 1
        try:
            return await asyncio.to_thread(make, raw)
        finally:
            self._in_threads -= 1

    def submit(self, call: Call) -> list[OpenAnswer]:
        """All requests of the call into the engine; PeltonError and none of them, if one is not taken."""
        answers: list[OpenAnswer] = []
        taken = False
        try:
            answers += [self.engine.submit(request) for request in call.requests]
            taken = True
        finally:
            if not taken:
                for answer in answers:
                    answer.abort()
        return answers

    def log(self, request_id: str, call: Call) -> None:
        """One line per call, if that is wanted."""
        if self.settings.enable_log_requests:
            LOG.info(
                "request %s: %d prompts of %s tokens, sampling %s",
                request_id,
                len(call.requests),
                [len(request.prompt_token_ids) for request in call.requests],
                explained(call.effective),
            )


def explained(effective: Effective) -> dict[str, dict[str, object]]:
    """Each sampling value in use, and where it came from."""
    return {
        name: {"value": getattr(effective.params, name), "origin": origin} for name, origin in effective.origins.items()
    }


def unix_time() -> int:
    """Seconds since 1970, for `created`."""
    return int(datetime.now(UTC).timestamp())
