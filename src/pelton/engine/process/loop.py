"""The engine process: builds the engine, steps it while there is work, and tells its parent what each step brought.

Run as `python -m`, by the supervisor alone, with the numbers of two inherited file descriptors: the socket and the
memory of the flight record. Invariant: no request and no broken step ends the loop; the parent's end always does.
"""

import ctypes
import logging
import os
import signal
import sys
from types import FrameType

import msgspec

from pelton.core.clock import Clock, SystemClock
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError, PeltonError
from pelton.core.plan import StepPlan
from pelton.engine.build import build_engine
from pelton.engine.engine import Engine
from pelton.engine.process.flight import FlightRecord
from pelton.engine.process.line import Line
from pelton.engine.process.messages import (
    Abort,
    Add,
    Ask,
    CacheReset,
    DescribeCache,
    EndSession,
    Failure,
    Finishing,
    Gone,
    Inbound,
    Question,
    Ready,
    Refused,
    ResetPrefixCache,
    Shutdown,
    Start,
    StartFailed,
    Step,
    Stop,
    Told,
    WireRequest,
    config_of,
)
from pelton.kv.shape import Wanted

MOST_BROKEN = 5  # steps in a row after which a fresh process is the better try
FINISH_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger("pelton")


class Loop:
    """Steps the engine and does what the parent says in between."""

    def __init__(self, engine: Engine, line: Line, flight: FlightRecord, clock: Clock) -> None:
        self._engine = engine
        self._line = line
        self._flight = flight
        self._clock = clock
        self._taken = 0
        self._broken = 0
        self._finishing = False
        self._told = False
        self._over = False
        engine.on_plan = self._record
        engine.runner.wake = line.fileno()

    def finish(self) -> None:
        """Takes no more requests, and ends when the open ones are over. Safe to call from a signal's handler."""
        self._finishing = True

    def run(self) -> str:
        """Until told to end; says by what.

        EOFError where the parent is gone; the exception of a step that breaks again and again.
        """
        while not self._over:
            if self._finishing and not self._told:
                self._told = True
                self._line.send(Finishing())
            idle = not self._engine.has_work
            if idle and self._finishing:
                return "it was told to end by a signal"
            for message in self._line.receive(wait=idle):
                self._do(message)
            if self._engine.has_work and not self._over:
                self._step()
        return "it was told to end"

    def _do(self, message: Inbound) -> None:
        match message:
            case Add(request=request, sequences=sequences):
                self._taken += len(sequences)
                self._add(request, sequences)
            case Stop(request_ids=request_ids):
                for request_id in request_ids:
                    self._engine.stop(request_id)
            case Abort(request_ids=request_ids):
                for request_id in request_ids:
                    self._engine.abort(request_id)
            case ResetPrefixCache(number=number):
                self._engine.reset_prefix_cache()
                self._line.send(CacheReset(number, self._stats()))
            case Ask(number=number, question=question):
                body = self._answer(question)
                self._line.send(Told(number, body, self._stats()))
            case Shutdown():
                self._over = True
            case Start():
                _log.error("The engine process was told to start twice.")

    def _stats(self) -> EngineStats:
        """Those of the last step, with what memory holds now."""
        now = self._engine.scheduler.stats()
        return msgspec.structs.replace(
            self._engine.stats,
            kv_usage=now.kv_usage,
            held_blocks=now.held_blocks,
            cached_blocks=now.cached_blocks,
            sessions=now.sessions,
            session_blocks=now.session_blocks,
        )

    def _answer(self, question: Question) -> bytes:
        sharing = self._engine.scheduler.sharing
        match question:
            case DescribeCache(runs=runs, tokens=tokens):
                waste, tiers = self._engine.scheduler.stats().kv_waste, self._engine.scheduler.tiers.figures()
                told = {**sharing.describe(Wanted(runs, tokens)), "waste": waste, "tiers": tiers}
                return msgspec.json.encode(told)
            case EndSession(session=session):
                return b"1" if sharing.sessions.end(session) else b""

    def _add(self, wire: WireRequest, sequences: tuple[str, ...]) -> None:
        """All sequences of a request join, or it is refused."""
        joined = 0
        try:
            if self._finishing:
                raise EngineDeadError("The engine process was told to end.", "Send the request again in a moment.")
            for sequence in wire.request().children():
                self._engine.add_request(sequence)
                joined += 1
            return
        except PeltonError as error:
            failure = Failure.of(error)
        except Exception as error:  # noqa: BLE001 - logged and answered; others go on
            _log.exception("Request %s could not be taken in", wire.request_id)
            failure = Failure.of(error)
        for name in sequences[:joined]:
            self._engine.abort(name)
        self._line.send(Refused(wire.request_id, failure, sequences[joined:], self._taken))

    def _step(self) -> None:
        began = self._clock.now()
        try:
            events = self._engine.step()
        except Exception:
            # The engine has failed its open requests, which the next step tells.
            _log.exception("A step broke: %s", self._flight.read())
            self._broken += 1
            if self._broken >= MOST_BROKEN:
                raise
            return
        self._broken = 0
        self._flight.end()
        self._line.send(Step(tuple(events), self._engine.stats, began, self._clock.now(), self._taken))

    def _record(self, plan: StepPlan) -> None:
        self._flight.begin(plan, self._clock.now())


def main(arguments: list[str]) -> int:
    """The process from its first to its last message; 0 where it ended as it was told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    line, flight = Line(int(arguments[0])), FlightRecord(int(arguments[1]))
    os.close(int(arguments[1]))
    try:
        first = line.receive(wait=True)
        while not first:
            first = line.receive(wait=True)
        if not isinstance(first[0], Start):
            return 2
        return _serve(first[0], first[1:], line, flight)
    except EOFError:
        return 1
    finally:
        line.close()


def _serve(start: Start, others: list[Inbound], line: Line, flight: FlightRecord) -> int:
    _end_with(start.parent)
    logging.basicConfig(level=start.log_level, format="%(levelname)s engine process: %(message)s")
    clock = SystemClock()
    try:
        parts = build_engine(config_of(start.config), clock)
    except PeltonError as error:
        return _failed(error, line)
    except Exception as error:  # noqa: BLE001 - logged, and told to the parent
        _log.exception("The engine could not be built")
        return _failed(error, line)
    try:
        loop = Loop(parts.engine, line, flight, clock)

        def terminate(number: int, frame: FrameType | None) -> None:
            loop.finish()

        signal.signal(signal.SIGTERM, terminate)
        line.send(Ready.of(parts.report, parts.limits))
        line.send(Gone(loop.run()))
        line.finish(FINISH_SECONDS)
        return 0
    finally:
        parts.close()


def _failed(error: BaseException, line: Line) -> int:
    line.send(StartFailed(Failure.of(error)))
    line.finish(FINISH_SECONDS)
    return 1


def _end_with(parent: int) -> None:
    """This process is killed when its parent ends, however it ends, and in the middle of whatever it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        raise EOFError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
