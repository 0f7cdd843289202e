"""Errands: what an engine is asked that takes longer than a moment, done in pieces between its steps.

An errand is a generator: it yields what it waits for, is given the result, and returns its answer. Invariant: one after
the other, in the order in which they were asked, so that none sees another half done.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from pelton.engine.engine import Engine

Errand = Generator[Future[Any], Any, bytes]


class Errands:
    """`wake` is called, by whatever thread, when one can go on."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._open: deque[tuple[int, Errand]] = deque()
        self._waits: Future[Any] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def ready(self) -> bool:
        """Whether one can go on now."""
        return bool(self._open) and (self._waits is None or self._waits.done())

    def add(self, number: int, errand: Errand) -> None:
        """Behind all that were added before. `number`: by which its end is told."""
        self._open.append((number, errand))

    def advance(self) -> tuple[int, bytes | Exception] | None:
        """Goes on with the first one, if it can; its number and answer, or what it failed by, if that is its end."""
        if not self.ready:
            return None
        number, errand = self._open[0]
        waited, self._waits = self._waits, None
        try:
            if waited is None:
                waits = next(errand)
            elif (error := waited.exception()) is not None:
                waits = errand.throw(error)
            else:
                waits = errand.send(waited.result())
        except StopIteration as over:
            self._open.popleft()
            answer: bytes = over.value
            return number, answer
        except Exception as error:  # noqa: BLE001 - told to whoever asked; the engine goes on
            self._open.popleft()
            return number, error
        self._waits = waits
        waits.add_done_callback(lambda _: self._wake())
        return None


def reset(engine: Engine) -> Errand:
    """Forgets every cached block that no request uses; over once the files of such are gone."""
    yield engine.reset_prefix_cache()
    return b""
