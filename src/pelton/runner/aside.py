"""Aside: a thread for what is done while a step is computed. The step itself stays in the thread that asked for it.

So signals, exceptions and the backend's idea of its caller are what they are without it. Invariant: nothing runs aside
when `call` is over, however it ended.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


class Aside:
    """The thread begins with the first call, and ends with `close` or when nobody has this any more."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "pelton-aside")

    def call(self, work: Callable[[], T], meanwhile: Callable[[], None]) -> T:
        """What `work` gives, while `meanwhile` is called in the other thread: as soon as `work` lets go of the GIL.

        Raises what `work` raises, else what `meanwhile` does, when both are over.
        """
        other = self._thread.submit(meanwhile)
        try:
            result = work()
        finally:
            _wait(other)
        other.result()
        return result

    def close(self) -> None:
        """Ends the thread; twice is no error."""
        self._thread.shutdown()


def _wait(other: "Future[None]") -> None:
    """Until it is over; what a signal's handler raises goes on its way only then."""
    try:
        wait((other,))
    finally:
        if not other.done():
            _wait(other)
