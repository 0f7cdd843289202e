"""Session: an engine and the answers it is working on, moved one step at a time by whoever waits.

Several waiters, in one thread or in many, take turns: each step moves all requests. Invariant: whatever touches the
engine or an unfinished answer does so in its turn; a dropped request is out of the engine once the turn is over.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from types import FrameType, TracebackType

from pelton.core.errors import BackendError, RequestError
from pelton.core.request import Request
from pelton.engine.engine import Engine, rest
from pelton.engine.outputs import Answer, Answers, StreamPiece
from pelton.tokenize.tokenizer import Tokenizer

Handler = Callable[[int, FrameType | None], object]


class HeldInterrupt:
    """A block of code that SIGINT cannot cut. Outside the main thread, which alone gets signals, it does nothing."""

    def __init__(self) -> None:
        self._held = False
        self._former: Handler | None = None

    def __enter__(self) -> "HeldInterrupt":
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGINT)
            if callable(former):
                self._former = former
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            if self._held:
                self._former(signal.SIGINT, None)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held = True


class Session:
    """Safe to use from several threads; a turn is at most one step long. Ctrl-C waits until the turn is over.

    Who asks for a turn (all but `drop`) in the middle of one of the same thread, as a signal's handler may, gets a
    BackendError; so does all work in a process forked from the engine's.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._answers = Answers(tokenizer)
        self._closed = False
        self._process = os.getpid()
        self._turn_lock = Lock()
        self._owner: int | None = None
        self._leaving: deque[str] = deque()

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked process, which has the engine's memory but none of its threads."""
        return os.getpid() != self._process

    def refuse_fork(self) -> None:
        """BackendError in a forked process. Callers ask before they take any lock, which a fork may have left taken."""
        if self.forked:
            raise BackendError(
                f"Process {os.getpid()} was forked from process {self._process}, in which the model was opened; "
                "the threads that compute exist only there.",
                "Open the model after the fork, or start processes by spawn.",
            )

    def start(self, requests: Iterable[Request]) -> list[Answer]:
        """The requests join the engine together, each as its n sequences.

        RequestError or CapacityError where one can never run. Some have joined then: the caller drops all of them.
        """
        with self._turn():
            self._expect_open()
            answers = []
            for request in requests:
                answers.append(self._answers.start(request))
                for sequence in request.children():
                    self.engine.add_request(sequence)
            return answers

    def advance(self) -> list[Answer]:
        """One step for all requests, if there are any; the answers it finished."""
        with self._turn():
            return self._move() if self.engine.has_work else []

    def unfinished(self, answers: Sequence[Answer]) -> list[Answer]:
        """Those of the answers that are not finished after one more step. None is made where all are already."""
        with self._turn():
            if any(not answer.finished for answer in answers):
                self._move()
            return [answer for answer in answers if not answer.finished]

    def next_pieces(self, answer: Answer) -> list[StreamPiece]:
        """What came of an answer since the last pieces, as soon as there is something; whoever's steps brought it."""
        while True:
            with self._turn():
                pieces = answer.pieces()
                if not pieces:
                    self._move()
                    pieces = answer.pieces()
            if pieces:
                return pieces

    def reset_prefix_cache(self) -> None:
        """Forgets every cached block that no request uses; returns when the files of such are gone."""
        with self._turn():
            self._expect_open()
            over = self.engine.reset_prefix_cache()
        over.result()

    def end_session(self, name: tuple[str, str]) -> bool:
        """Lets go of what is held for a session, (salt, id); False where nothing is."""
        with self._turn():
            self._expect_open()
            return self.engine.scheduler.sharing.sessions.end(name)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nobody waits for these any more: they end, if they have not yet; at once, or when the present turn is over.

        Never waits: a stream that is collected as garbage in the middle of a step comes here too.
        """
        self._leaving.extend(request_ids)
        self._see_off()

    def close(self) -> None:
        """All open requests end, and none joins any more. In a forked process only the latter."""
        if self.forked:
            self._closed = True
            return
        with self._turn():
            self._closed = True
            self.engine.abort_all()

    def _expect_open(self) -> None:
        if self._closed:
            raise RequestError("The engine is closed.", "Open the model again.")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self.refuse_fork()
        if self._owner == get_ident():
            raise BackendError(
                "The engine was called while it computes, by the same thread.",
                "Let a signal's handler only note what is to be done after the step.",
            )
        with HeldInterrupt():
            try:
                with self._turn_lock:
                    self._owner = get_ident()
                    try:
                        yield
                    finally:
                        self._owner = None
            finally:
                self._see_off()

    def _see_off(self) -> None:
        """Ends what was dropped, unless a turn is under way: at its end its thread comes here."""
        with HeldInterrupt():
            # Again after the release: another thread may have left it to this one meanwhile.
            while self._leaving and self._turn_lock.acquire(blocking=False):
                try:
                    while self._leaving:
                        for sequence in self._answers.drop(self._leaving.popleft()):
                            self.engine.abort(sequence)
                finally:
                    self._turn_lock.release()

    def _move(self) -> list[Answer]:
        """One step. If its events break an answer, all fail, so that nobody waits for what was lost with them."""
        if not self.engine.has_work:
            raise RuntimeError("somebody waits for an answer that nobody computes")
        clock = self.engine.clock
        began = clock.now()
        events = self.engine.step()
        try:
            finished, stopped = self._answers.take(events, began, clock.now())
        except BaseException as error:
            what = f"Taking in a step's tokens broke: {type(error).__name__}: {error}"
            self.engine.fail_all(what)
            self._answers.fail_all(what, clock.now())
            raise
        for request_id in stopped:
            self.engine.stop(request_id)
        rest(self.engine)
        return finished
