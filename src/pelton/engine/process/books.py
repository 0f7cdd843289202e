"""Books: which requests are open in the engine process, and who waits for their answers. It sends nothing.

Invariant: every sequence that was sent to the engine is in here until its RequestFinished came, so that what still
comes of one that was aborted is never taken for news of a later request of the same id.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pelton.core.clock import Clock
from pelton.core.errors import RequestError
from pelton.core.events import Event, RequestFinished, RequestScheduled
from pelton.core.request import Request
from pelton.engine.outputs import Answer, Answers
from pelton.engine.process.answer import Mailbox
from pelton.engine.process.messages import Refused, Step
from pelton.tokenize.tokenizer import Tokenizer

_log = logging.getLogger("pelton")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step's events came to. `stop`, `abort`: sequences that are to leave the engine; `entered`: began."""

    finished: list[Answer]
    stop: tuple[str, ...] = ()
    abort: tuple[str, ...] = ()
    entered: int = 0


class Books:
    """Belongs to one event loop. `idle` is set while no request is open."""

    def __init__(self, tokenizer: Tokenizer, clock: Clock) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._clock = clock
        self._answers = Answers(tokenizer)
        self._open: dict[str, Mailbox] = {}
        self._sequences: dict[str, Mailbox] = {}
        self._leaving: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether the engine is to tell the end of some sequence."""
        return bool(self._sequences or self._leaving)

    def start(self, requests: Sequence[Request]) -> list[Mailbox]:
        """A mailbox for the answer to each; RequestError for an id in use, and then none of them is open."""
        mailboxes: list[Mailbox] = []
        try:
            for request in requests:
                mailboxes.append(Mailbox(self._answers.start(request)))
        except RequestError:
            for mailbox in mailboxes:
                self._answers.drop(mailbox.answer.request.request_id)
            raise
        for mailbox in mailboxes:
            self._open[mailbox.answer.request.request_id] = mailbox
            self._sequences |= dict.fromkeys(mailbox.answer.sequences, mailbox)
            self.idle.clear()
        return mailboxes

    def take(self, step: Step) -> Taken:
        """All events of a step; each reader is woken once. If taking them in breaks, all answers fail: none hangs."""
        events = self._current(step.events)
        try:
            finished, stopped = self._answers.take(events, step.began, step.now)
        except Exception as error:  # noqa: BLE001 - logged; nobody may wait for ever for what was lost
            _log.exception("Taking in a step's tokens broke")
            return self._fail(events, f"Taking in a step's tokens broke: {type(error).__name__}: {error}")
        woken: dict[str, Mailbox] = {}
        entered = 0
        for event in events:
            if isinstance(event, RequestScheduled):
                entered += 1
                continue
            mailbox = self._sequences.get(event.request_id)
            if mailbox is None:
                continue
            woken[mailbox.answer.request.request_id] = mailbox
            if isinstance(event, RequestFinished):
                del self._sequences[event.request_id]
        for sequence in stopped:
            if self._sequences.pop(sequence, None) is not None:
                self._leave(sequence)
        over = [self._retire(answer.request.request_id) for answer in finished]
        for mailbox in woken.values():
            mailbox.news.set()
        return Taken(over, tuple(stopped), entered=entered)

    def refuse(self, message: Refused) -> None:
        """The engine did not take a request; whoever waits for it gets the error."""
        left = [sequence for sequence in message.never if sequence in self._leaving]
        for sequence in left:
            self._has_left(sequence)
        mailbox = self._open.get(message.request_id)
        if left or mailbox is None:  # the request was aborted meanwhile; its id may be another one's now
            return
        for sequence in mailbox.answer.sequences:
            if self._sequences.pop(sequence, None) is not None and sequence not in message.never:
                self._leave(sequence)
        mailbox.refused = message.failure.error()
        self._retire(message.request_id)

    def abort(self, mailbox: Mailbox) -> tuple[tuple[str, ...], list[Answer]]:
        """Ends a request here. (The sequences that are to leave the engine, the answer it ends.)"""
        left = self._left(mailbox)
        if not left:
            return (), []
        over = self._end(dict.fromkeys(left, mailbox), "abort", None)
        for sequence in left:
            self._leave(sequence)
        return left, over

    def end_all(self, reason: str, error: str | None) -> list[Answer]:
        """Every open request ends with this; the engine tells nothing of them any more."""
        self._leaving.clear()
        return self._end(dict(self._sequences), reason, error)

    def sequences(self) -> tuple[str, ...]:
        """Ids of the sequences that are open."""
        return tuple(self._sequences)

    def _fail(self, events: Iterable[Event], error: str) -> Taken:
        """Every open request ends as it is, with this error; the engine still has those whose end it has not told."""
        told = {event.request_id for event in events if isinstance(event, RequestFinished)}
        left = tuple(sequence for sequence in self._sequences if sequence not in told)
        self._sequences.clear()
        for sequence in left:
            self._leave(sequence)
        over = []
        for name, mailbox in list(self._open.items()):
            mailbox.answer.fail(error, self._clock.now())
            over.append(self._retire(name))
        return Taken(over, abort=left)

    def _left(self, mailbox: Mailbox) -> tuple[str, ...]:
        """The sequences of a request that are still open."""
        return tuple(name for name in mailbox.answer.sequences if self._sequences.get(name) is mailbox)

    def _end(self, sequences: dict[str, Mailbox], reason: str, error: str | None) -> list[Answer]:
        now = self._clock.now()
        ends = [RequestFinished(sequence, reason, error=error) for sequence in sequences]
        finished, _ = self._answers.take(ends, now, now)
        for sequence in sequences:
            del self._sequences[sequence]
        return [self._retire(answer.request.request_id) for answer in finished]

    def _retire(self, request_id: str) -> Answer:
        """A request is over: its readers are woken, its id is free."""
        mailbox = self._open.pop(request_id)
        self._answers.drop(request_id)
        if not self._open:
            self.idle.set()
        mailbox.end()
        return mailbox.answer

    def _current(self, events: Iterable[Event]) -> list[Event]:
        """The events without those of sequences that were left to end."""
        if not self._leaving:
            return list(events)
        kept: list[Event] = []
        for event in events:
            if event.request_id not in self._leaving:
                kept.append(event)
            elif isinstance(event, RequestFinished):
                self._has_left(event.request_id)
        return kept

    def _leave(self, sequence: str) -> None:
        self._leaving[sequence] = self._leaving.get(sequence, 0) + 1

    def _has_left(self, sequence: str) -> None:
        if self._leaving[sequence] == 1:
            del self._leaving[sequence]
        else:
            self._leaving[sequence] -= 1
