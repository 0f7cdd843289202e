"""Session: an engine and the answers it is working on, moved one step at a time by whoever waits.

Several waiters may take turns: each step moves all requests. Invariant: a dropped request is out of the engine.
"""

from collections.abc import Iterable

from pelton.core.errors import RequestError
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.engine.interrupts import HeldInterrupt
from pelton.engine.outputs import Answer, Answers
from pelton.tokenize.tokenizer import Tokenizer


class Session:
    """Not thread-safe, like the engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._answers = Answers(tokenizer)
        self._closed = False

    def start(self, request: Request) -> Answer:
        """The request joins the engine; RequestError or CapacityError where it can never run."""
        if self._closed:
            raise RequestError("The engine is closed.", "Open the model again.")
        self.engine.add_request(request)
        return self._answers.start(request)

    def advance(self) -> list[Answer]:
        """One step for all requests; the answers it finished. Ctrl-C waits until the step is over."""
        assert self.engine.has_work, "somebody waits for an answer that nobody computes"
        clock = self.engine.clock
        with HeldInterrupt():
            began = clock.now()
            events = self.engine.step()
            finished, stopped = self._answers.take(events, began, clock.now())
            for request_id in stopped:
                self.engine.abort(request_id)
        return finished

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nobody waits for these any more: they end, if they have not yet."""
        for request_id in request_ids:
            self.engine.abort(request_id)
            self._answers.drop(request_id)

    def close(self) -> None:
        """All open requests end, and none joins any more."""
        self._closed = True
        self.engine.abort_all()
