"""replay: sends arrivals to an engine at their moments, and notes when what came. The engine may be real or virtual.

It decides nothing of the engine's. Invariant: every arrival ends, refused or answered to its last token.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pelton.core.clock import Clock, FakeClock
from pelton.core.errors import PeltonError
from pelton.core.events import Event, RequestFinished, RequestScheduled, TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.measure.bench.figures import Timing
from pelton.measure.simulate.arrivals import Arrival
from pelton.measure.simulate.virtual import VirtualExecutable

EPSILON = 1e-9  # seconds: sums of a clock are rounded


class Pace(Protocol):
    """Whose time it is."""

    @property
    def clock(self) -> Clock:
        """The engine's."""
        ...

    def wait(self, seconds: float) -> None:
        """Nothing is to do for so long."""
        ...

    def due(self, moment: float) -> None:
        """The next arrival comes when the clock says so; infinity: none does."""
        ...


@dataclass(frozen=True, slots=True)
class VirtualPace:
    """Waiting takes no time."""

    clock: FakeClock
    executable: VirtualExecutable

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def due(self, moment: float) -> None:
        self.executable.due = moment


@dataclass(slots=True)
class Course:
    """Of each call when it began and ended (seconds from the start), how many requests were in it, how many tokens it
    computed; and behind it the share of KV blocks held in the fullest group, and how many requests waited.
    """

    began: "array[float]" = field(default_factory=lambda: array("d"))
    ended: "array[float]" = field(default_factory=lambda: array("d"))
    usage: "array[float]" = field(default_factory=lambda: array("d"))
    running: "array[int]" = field(default_factory=lambda: array("l"))
    waiting: "array[int]" = field(default_factory=lambda: array("l"))
    tokens: "array[int]" = field(default_factory=lambda: array("l"))

    def add(self, began: float, ended: float, engine: Engine) -> None:
        stats = engine.stats
        self.began.append(began)
        self.ended.append(ended)
        self.usage.append(stats.kv_usage)
        self.running.append(stats.step_sequences)
        self.waiting.append(stats.waiting)
        self.tokens.append(stats.step_tokens)

    def __len__(self) -> int:
        return len(self.ended)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of the arrivals, in their order, and of the engine meanwhile. `seconds`: of the whole."""

    timings: tuple[Timing, ...]
    course: Course
    seconds: float


class _Watch:
    """Puts down what the engine tells."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        self._timings = timings
        self._began: set[int] = set()

    def take(self, events: Sequence[Event], now: float) -> int:
        """How many requests ended with these."""
        ended = 0
        for event in events:
            timing = self._timings[int(event.request_id)]
            match event:
                case RequestScheduled(cached_tokens=cached):
                    # One that lost its place begins again, and finds what it had computed itself.
                    if int(event.request_id) not in self._began:
                        self._began.add(int(event.request_id))
                        timing.cached_tokens = cached
                case TokensGenerated(tokens=tokens):
                    timing.pieces.append(now)
                    timing.output_tokens += len(tokens)
                case RequestFinished(reason=reason):
                    timing.ended = now
                    timing.error = None if reason == "length" else f"It ended as {reason}."
                    ended += 1
                case _:
                    pass
        return ended


def replay(
    engine: Engine, arrivals: Sequence[Arrival], pace: Pace, vocab: int, told: Callable[[int], object] = lambda ended: 0
) -> Replayed:
    """`told` is called with the number of requests that each step ended. Answers have their whole length, and are drawn
    greedily. Times are in seconds from the start; a request counts as sent when it is due, also where a step of the
    engine is under way. Where the engine refuses one, its error is noted.
    """
    clock = pace.clock
    start = clock.now()
    timings = [Timing(arrival.at, input_tokens=arrival.prompt) for arrival in arrivals]
    watch, course, place = _Watch(timings), Course(), 0
    while place < len(arrivals) or engine.has_work:
        now = clock.now() - start
        while place < len(arrivals) and arrivals[place].at <= now + EPSILON:
            if (error := _sent(engine, arrivals[place], start, vocab)) is not None:
                timings[place].error, timings[place].ended = error, now
                told(1)
            place += 1
        next_due = arrivals[place].at if place < len(arrivals) else float("inf")
        if not engine.has_work:
            if place < len(arrivals):
                pace.wait(max(next_due - now, 0.0))
            continue
        pace.due(start + next_due)
        events = engine.step()
        ended_at = clock.now() - start
        course.add(now, ended_at, engine)
        if ended := watch.take(events, ended_at):
            told(ended)
    return Replayed(tuple(timings), course, clock.now() - start)


def _sent(engine: Engine, arrival: Arrival, start: float, vocab: int) -> str | None:
    """The error of one that is refused."""
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=arrival.output, ignore_eos=True, detokenize=False)
    request = Request(
        str(arrival.number),
        tuple(arrival.ids(vocab).tolist()),
        params,
        frozenset(),
        arrival.output,
        arrival=start + arrival.at,
        owner=arrival.client,
    )
    try:
        engine.add_request(request)
    except PeltonError as error:
        return str(error)
    return None
