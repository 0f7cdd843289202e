"""Service: what the routes share. It makes a body into engine requests off the loop where that takes long.

Invariant: a call never waits for one whose body is much longer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from pelton import __version__
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError, RequestError
from pelton.core.request import Request, RequestOutput
from pelton.engine.front import Front
from pelton.engine.outputs import Answer, StreamPiece
from pelton.engine.process.messages import Question
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.sampling.effective import Effective
from pelton.serve.errors import AnswerAbortedError
from pelton.serve.metrics import Metrics
from pelton.serve.settings import ServeSettings

LOG = logging.getLogger("pelton.serve")
DRAWN, ROOM = "drawn", "room"
# Bytes from which on reading and tokenising would hold up other streams: a body takes about 0.4 ms for each 1000.
SHORT_BODY = 1 << 11
LONG_BODY = 1 << 16  # and from which on it would hold up those of usual size
Made = TypeVar("Made")


class OpenAnswer(Protocol):
    """An answer in the making: its pieces, or the end. `aclose` takes it out of the engine; later it does nothing."""

    @property
    def answer(self) -> Answer: ...

    def __aiter__(self) -> AsyncIterator[StreamPiece]: ...

    async def output(self) -> RequestOutput: ...

    async def aclose(self) -> None: ...


class AskedEngine(Protocol):
    """What is asked of an AsyncEngine's memory."""

    async def reset_prefix_cache(self) -> bool: ...

    async def ask(self, question: Question) -> bytes | None:
        """None where no engine runs, or it ended meanwhile; PeltonError where it refuses."""
        ...


class ServedEngine(AskedEngine, Protocol):
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
    def load(self) -> int:
        """Answers that are in the making or waiting."""
        ...

    @property
    def front(self) -> Front: ...

    @property
    def limits(self) -> PromptLimits: ...

    @property
    def requests(self) -> RequestMaker: ...

    def submit_all(self, requests: Sequence[Request]) -> Sequence[OpenAnswer]: ...


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
    """A checked body: what the engine is to do, and how the answer is told. One request for each prompt.

    `marked`: a stream ends with OpenAI's mark.
    """

    requests: tuple[Request, ...]
    writer: Writer
    stream: bool
    ignored: tuple[str, ...]
    effective: Effective
    marked: bool = True


class Service:
    """The engine and the door's settings, with what every route asks of them."""

    def __init__(self, engine: ServedEngine, settings: ServeSettings, metrics: Metrics) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.fingerprint = f"pelton-{__version__}"
        self.created = unix_time()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    @property
    def running(self) -> bool:
        """Whether the engine takes requests."""
        return self.engine.state == "running" and not self.engine.draining

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called here; the engine has to have started."""
        return self.settings.served_model_names or (self.engine.front.config.model.model,)

    @property
    def slots(self) -> int:
        """How many slots there are: one for each request that is computed at once."""
        return self.engine.front.config.schedule.max_num_seqs

    async def ask(self, question: Question) -> bytes:
        """The engine's answer; a PeltonError where it refuses, or ends before it answers."""
        answer = await self.engine.ask(question)
        if answer is None:
            raise EngineDeadError("The engine process ended before it could answer.", "Ask again in a few seconds.")
        return answer

    def expect_running(self) -> None:
        """A PeltonError that becomes a 503, unless the engine takes requests."""
        if self.engine.draining:
            raise AnswerAbortedError("The server is shutting down.", "Send the request again later.")
        if not self.running:
            later = "Ask again in a few seconds." if self.engine.state != "stopped" else "The server ends."
            raise EngineDeadError(f"The engine is {self.engine.state}.", later)

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
        """make(raw): here if it is quick, else in a thread, one body after the other of about its length.

        A template of the client's own may run for ever, so these only wait for their like.
        """
        if b'"chat_template"' in raw:
            return await self._in_thread("template", make, raw)
        if len(raw) < SHORT_BODY:
            return make(raw)
        return await self._in_thread("body" if len(raw) < LONG_BODY else "long-body", make, raw)

    async def _in_thread(self, name: str, make: Callable[[bytes], Made], raw: bytes) -> Made:
        """make(raw) in the one thread of this name. They are few: more would take turns at the same locks."""
        thread = self._threads.get(name)
        if thread is None:
            thread = self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=f"pelton-{name}")
        return await asyncio.get_running_loop().run_in_executor(thread, make, raw)

    def log(self, request_id: str, call: Call) -> None:
        """One line per call, if that is wanted, with the sampling values that somebody chose."""
        if self.settings.enable_log_requests:
            values = explained(call.effective, call.requests)
            LOG.info(
                "request %s: prompts of %s tokens, sampling %s",
                request_id,
                [len(request.prompt_token_ids) for request in call.requests],
                {name: value for name, value in values.items() if value["origin"] != "default"},
            )


def explained(effective: Effective, requests: Sequence[Request]) -> dict[str, dict[str, object]]:
    """Each sampling value in use, and where it came from: what differs between requests as a list of one for each.

    Origins are those of Effective, DRAWN of a seed that was not given, and ROOM of a max_tokens that is all that fits.
    """
    params = effective.params
    told: dict[str, dict[str, object]] = {
        name: {"value": getattr(params, name), "origin": origin} for name, origin in effective.origins.items()
    }
    told["seed"]["value"] = _one_or_each([request.params.seed for request in requests])
    if params.seed is None:
        told["seed"]["origin"] = DRAWN
    rooms = [request.max_tokens for request in requests]
    told["max_tokens"]["value"] = _one_or_each(rooms)
    if any(room != params.max_tokens for room in rooms):
        told["max_tokens"]["origin"] = ROOM
    return told


def _one_or_each(values: Sequence[object]) -> object:
    return values[0] if len(set(values)) == 1 else values


def unix_time() -> int:
    """Seconds since 1970, for `created`."""
    return int(datetime.now(UTC).timestamp())
