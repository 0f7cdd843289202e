"""Desk: between those who wait for answers and the engine process: passes on what either side says, tells observers.

It starts and watches no process. Invariant: every request that was taken ends, whatever becomes of the engine process:
with its answer, as aborted, or with an error.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from pelton.core.clock import Clock
from pelton.core.config import ScheduleSection
from pelton.core.counters import EngineStats
from pelton.core.errors import OverloadedError, RequestError
from pelton.core.events import Event
from pelton.core.request import Request, RequestOutput
from pelton.engine.outputs import Answer
from pelton.engine.process.answer import AsyncAnswer, Mailbox
from pelton.engine.process.books import Books
from pelton.engine.process.messages import (
    Abort,
    Add,
    Ask,
    Figures,
    Inbound,
    Outbound,
    Question,
    Refused,
    ResetPrefixCache,
    Step,
    Stop,
    Told,
    WireRequest,
    encode,
)
from pelton.engine.process.queue_limit import QueueLimit
from pelton.tokenize.tokenizer import Tokenizer

QUEUE_FULL = "max_num_queued_reqs"

_log = logging.getLogger("pelton")


class Observer(Protocol):
    """Who is told what happens: in the event loop, so it has to be quick. What it raises is logged and harms nobody."""

    def on_step(self, stats: EngineStats, events: tuple[Event, ...]) -> None:
        """A step is over; the requests it finished are told after it."""
        ...

    def on_finished(self, output: RequestOutput, request: Request) -> None:
        """All answers of a request are over, by whatever."""
        ...

    def on_restart(self) -> None: ...

    def on_rejected(self, reason: str) -> None:
        """A call was not taken: max_num_queued_reqs, or what the engine is doing: restarting, draining, ..."""
        ...


class Audience:
    """Those who are told what happens; the list may grow at any time. Only the first failure of each is logged."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = observers
        self._failed: set[int] = set()

    def step(self, stats: EngineStats, events: tuple[Event, ...]) -> None:
        self._tell(lambda observer: observer.on_step(stats, events))

    def finished(self, answer: Answer) -> None:
        if self._observers:
            output = answer.output()
            self._tell(lambda observer: observer.on_finished(output, answer.request))

    def restarted(self) -> None:
        self._tell(lambda observer: observer.on_restart())

    def rejected(self, reason: str) -> None:
        self._tell(lambda observer: observer.on_rejected(reason))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception:  # noqa: BLE001 - logged; counting may not stop answers
                if id(observer) not in self._failed:
                    self._failed.add(id(observer))
                    _log.exception("%s failed; its further failures are not logged", type(observer).__name__)


class Questions:
    """What the engine process is asked and has not answered yet, by number."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: dict[int, asyncio.Future[bytes | None]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._open)

    async def ask(self, message: Callable[[int], Inbound]) -> bytes | None:
        """The answer to the message with this number, None where the engine died; the error by which it was refused."""
        number = next(self._numbers)
        done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._open[number] = done
        self._send(encode(message(number)))
        try:
            return await done
        finally:
            self._open.pop(number, None)

    def answer(self, told: Told) -> None:
        done = self._open.get(told.number)
        if done is not None and not done.done():
            if told.failure is None:
                done.set_result(told.body)
            else:
                done.set_exception(told.failure.error())

    def end(self) -> None:
        """Nothing is answered any more."""
        for done in self._open.values():
            if not done.done():
                done.set_result(None)


class Desk:
    """Belongs to one event loop. `send`: takes an encoded message to the engine process."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: ScheduleSection,
        clock: Clock,
        audience: Audience,
        send: Callable[[bytes], None],
    ) -> None:
        self.stats = EngineStats()
        self.books = Books(tokenizer, clock)
        self._limit = QueueLimit(limits.max_num_queued_reqs, limits.max_num_seqs, clock)
        self._audience = audience
        self._send = send
        self._questions = Questions(send)
        self._taken = 0

    @property
    def busy(self) -> bool:
        """Whether the engine is to say something."""
        return self.books.busy or bool(self._questions)

    def submit(self, requests: Sequence[Request]) -> list[AsyncAnswer]:
        """All requests of a call are on their way; with an OverloadedError or RequestError none of them is."""
        messages = [_joining(request) for request in requests]
        sequences = sum(request.params.n for request in requests)
        try:
            self._limit.check(sequences)
        except OverloadedError:
            self._audience.rejected(QUEUE_FULL)
            raise
        mailboxes = self.books.start(requests)
        self._limit.sent(sequences)
        for message in messages:
            self._send(message)
        return [AsyncAnswer(mailbox, self._abort) for mailbox in mailboxes]

    async def reset_prefix_cache(self) -> bool:
        """True once the engine has done it, False where it died."""
        return await self.ask(ResetPrefixCache()) is not None

    async def ask(self, question: Question) -> bytes | None:
        """The engine's answer, None where it died; PeltonError where it refuses."""
        return await self._questions.ask(lambda number: Ask(number, question))

    def abort_all(self) -> None:
        """The engine is to end all that is open; the answers end when it tells so."""
        self._leave(self.books.sequences())

    def end_all(self, reason: str, error: str | None = None) -> None:
        """All that is open ends here, and nothing more is awaited of the engine."""
        self._finish(self.books.end_all(reason, error))
        self._questions.end()

    def receive(self, message: Outbound) -> None:
        """What the engine process says."""
        match message:
            case Step():
                self._step(message)
            case Refused(taken=taken):
                self._seen(taken)
                self.books.refuse(message)
            case Figures(stats=stats) | Told(stats=stats):
                self.stats = stats
                self._audience.step(stats, ())
                if isinstance(message, Told):
                    self._questions.answer(message)
            case _:
                _log.error("The engine process said %s out of place.", type(message).__name__)

    def died(self, cause: str, now: str) -> None:
        """The engine process is gone with all that was open."""
        self._limit.reset()
        self._taken = 0
        self.stats = EngineStats(kv_blocks=self.stats.kv_blocks)
        self.end_all("error", f"{cause} while this request was running; {now}")

    def restarted(self) -> None:
        """Another engine process takes requests."""
        self._audience.restarted()

    def _step(self, step: Step) -> None:
        self.stats = step.stats
        taken = self.books.take(step)
        if taken.stop:
            self._send(encode(Stop(taken.stop)))
        self._leave(taken.abort)
        self._seen(step.taken)
        self._limit.step(step.stats, taken.entered)
        self._audience.step(step.stats, step.events)
        self._finish(taken.finished)

    def _seen(self, taken: int) -> None:
        self._limit.seen(taken - self._taken)
        self._taken = taken

    def _abort(self, mailbox: Mailbox) -> None:
        left, over = self.books.abort(mailbox)
        self._leave(left)
        self._finish(over)

    def _leave(self, sequences: tuple[str, ...]) -> None:
        if sequences:
            self._send(encode(Abort(sequences)))

    def _finish(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            self._audience.finished(answer)


def _joining(request: Request) -> bytes:
    """The message by which a request joins; RequestError where it cannot be sent."""
    names = tuple(sequence.request_id for sequence in request.children())
    try:
        return encode(Add(WireRequest.of(request), names))
    except (UnicodeEncodeError, OverflowError) as error:
        raise RequestError(f"The request cannot be sent to the engine process: {error}.") from error
