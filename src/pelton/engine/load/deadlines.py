"""Deadlines: which open requests nobody waits for any more. It knows times and ids, and ends nothing itself.

Invariant: each request is told as late at most once, and not before its time.
"""

from heapq import heapify, heappop, heappush

from pelton.core.errors import RequestError
from pelton.core.events import RequestFinished
from pelton.core.params import real
from pelton.core.request import Request

LATE = "request_timeout"  # the code of a request that its deadline ended
MOST_SECONDS = 1e6
FEW = 1000  # times of requests that are over, beyond which they are cleared away


class Deadlines:
    """Times in seconds of the engine's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._open: dict[str, float] = {}
        self._allowed: dict[str, float] = {}

    def add(self, request: Request) -> None:
        """A request joins; one without a deadline is none of this class's business."""
        if request.deadline is not None:
            self._open[request.request_id] = request.deadline
            self._allowed[request.request_id] = request.deadline - request.arrival
            heappush(self._heap, (request.deadline, request.request_id))

    def over(self, request_id: str) -> None:
        """A request ended."""
        self._open.pop(request_id, None)
        self._allowed.pop(request_id, None)
        if len(self._heap) > 2 * len(self._open) + FEW:
            self._heap = [(deadline, name) for name, deadline in self._open.items()]
            heapify(self._heap)

    def late(self, now: float) -> list[RequestFinished]:
        """The ends of open requests whose time is up; they count as told."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            deadline, request_id = heappop(self._heap)
            # An id may be another request's by now.
            if self._open.get(request_id) == deadline:
                found.append(RequestFinished(request_id, "error", error=self._error(request_id), code=LATE))
                self.over(request_id)
        return found

    def _error(self, request_id: str) -> str:
        return f"The request was not finished within the {self._allowed[request_id]:.3g} s that it was given."


def deadline_of(arrival: float, seconds: object) -> float | None:
    """When a request that arrived then and may take so long is late; None without a limit. RequestError for no time."""
    if seconds is None:
        return None
    number = real(seconds)
    if number is None or not 0 < number <= MOST_SECONDS:
        raise RequestError(
            f"timeout={seconds!r} is out of range.",
            f"It must be seconds, above 0 and at most {MOST_SECONDS:g}.",
            param="timeout",
        )
    return arrival + number
