"""The engine process: builds the engine, steps it while there is work, and tells its parent what each step brought.

Run as `python -m`, by the supervisor alone, with the numbers of two inherited file descriptors: the socket and the
memory of the flight record. Invariant: no request and no broken step ends the loop; the parent's end always does.
"""

import ctypes
import logging
import os
import signal
import sys
from itertools import islice
from pathlib import Path
from types import FrameType

import msgspec

from pelton.core.clock import Clock, SystemClock
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError, PeltonError
from pelton.core.plan import StepPlan
from pelton.engine.build import build_engine
from pelton.engine.engine import Engine, rest
from pelton.engine.memory.errands import Errand, Errands, reset
from pelton.engine.memory.slots import Slots
from pelton.engine.process.flight import FlightRecord
from pelton.engine.process.line import Line
from pelton.engine.process.messages import (
    Abort,
    Add,
    Ask,
    DescribeCache,
    DescribeSlots,
    EndSession,
    Failure,
    Figures,
    Finishing,
    Gone,
    Inbound,
    Question,
    Ready,
    Refused,
    ResetPrefixCache,
    RestoreSession,
    SaveSession,
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
from pelton.schedule.scheduler import holdings_of
from pelton.schedule.sessions import Sessions

MOST_BROKEN = 5  # steps in a row after which a fresh process is the better try
FINISH_SECONDS = 2.0
SIGN_SECONDS = 5.0  # between signs of life, while something takes long and nothing else is done
KEEP_SECONDS = 0.2  # between pieces of what an idle engine writes to files
JUST_AFTER = 0.001  # seconds after the end of a session, to be behind it
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger("pelton")


class Loop:
    """Steps the engine and does what the parent says in between. `slots`: who saves and restores sessions."""

    def __init__(
        self, engine: Engine, line: Line, flight: FlightRecord, clock: Clock, slots: Slots | None = None
    ) -> None:
        self._engine = engine
        self._line = line
        self._flight = flight
        self._clock = clock
        self._slots = slots
        self._errands = Errands(line.wake)
        self._holdings = holdings_of(engine.scheduler)
        self._taken = 0
        self._broken = 0
        self._rested = True  # since the last step
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
            idle = not self._engine.has_work and not self._errands.ready
            if idle and self._finishing and not self._errands:
                return "it was told to end by a signal"
            for message in self._line.receive(wait=idle, seconds=self._patience() if idle else None):
                self._do(message)
            if idle:
                self._look_up()
            self._go_on()
            if self._engine.has_work and not self._over:
                self._step()
        return "it was told to end"

    def _patience(self) -> float | None:
        """How long nothing need be done where nobody says anything."""
        ends = [end - self._clock.now() + JUST_AFTER for _, _, end in islice(self._sessions.listed(), 1)]
        ends += [SIGN_SECONDS] if self._errands else []
        ends += [KEEP_SECONDS] if self._writes else []
        ends += [] if self._rested else [0.0]
        return max(0.0, min(ends)) if ends else None

    def _look_up(self) -> None:
        """Sessions end by time also where no step does, and files are written; and what takes long is alive."""
        before, wrote = len(self._sessions), self._writes
        self._sessions.expire(self._clock.now())
        if wrote or not self._rested:
            rest(self._engine)
            self._rested = True
        if self._errands or wrote or len(self._sessions) < before:
            self._line.send(Figures(self._stats()))

    def _go_on(self) -> None:
        """With what takes longer than a moment."""
        over = self._errands.advance()
        if over is None:
            return
        number, answer = over
        if isinstance(answer, bytes):
            self._line.send(Told(number, answer, self._stats()))
            return
        if not isinstance(answer, PeltonError):
            _log.error("Question %d could not be answered", number, exc_info=answer)
            answer = PeltonError(f"What was asked could not be done: {type(answer).__name__}: {answer}.")
        self._line.send(Told(number, b"", self._stats(), Failure.of(answer)))

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
            case Ask(number=number, question=question):
                body = self._answer(question)
                if isinstance(body, bytes):
                    self._line.send(Told(number, body, self._stats()))
                else:
                    self._errands.add(number, body)
            case Shutdown():
                self._over = True
            case Start():
                _log.error("The engine process was told to start twice.")

    def _stats(self) -> EngineStats:
        """Those of the last step, with what memory holds now; of a step they tell nothing."""
        now = self._engine.scheduler.stats()
        return msgspec.structs.replace(
            self._engine.stats,
            kv_usage=now.kv_usage,
            held_blocks=now.held_blocks,
            cached_blocks=now.cached_blocks,
            spared_blocks=now.spared_blocks,
            sessions=now.sessions,
            session_blocks=now.session_blocks,
            disk_blocks=now.disk_blocks,
            disk_bytes=now.disk_bytes,
            disk_stored_total=now.disk_stored_total,
            disk_failed_total=now.disk_failed_total,
            host_slots_used=now.host_slots_used,
            step_tokens=0,
            step_sequences=0,
            step_seconds=0.0,
            step_steps=0,
        )

    def _answer(self, question: Question) -> bytes | Errand:
        """The answer, or what brings it."""
        scheduler, slots = self._engine.scheduler, self._slots
        match question:
            case DescribeCache(runs=runs, tokens=tokens, requests=requests):
                waste, tiers = scheduler.stats().kv_waste, scheduler.tiers.figures()
                held = self._holdings.describe(requests, names=tokens)
                told = {**scheduler.sharing.describe(Wanted(runs, tokens)), "waste": waste, "tiers": tiers, **held}
                return msgspec.json.encode(told)
            case EndSession(session=session):
                tokens_held = self._holdings.tokens(session)
                return str(tokens_held).encode() if self._sessions.end(session) else b""
            case DescribeSlots():
                return msgspec.json.encode(self._holdings.slots(scheduler.limits.max_num_seqs, scheduler.max_len))
            case SaveSession(session=session, path=path) if slots is not None:
                return slots.save(session, Path(os.fsdecode(path)))
            case RestoreSession(session=session, path=path) if slots is not None:
                return slots.restore(session, Path(os.fsdecode(path)))
            case ResetPrefixCache():
                return reset(self._engine)
            case _:
                raise RuntimeError("sessions are saved by engines that build_engine made")

    @property
    def _writes(self) -> bool:
        """Whether blocks are on their way to files."""
        offload = self._engine.scheduler.tiers.offload
        return offload is not None and offload.writing

    @property
    def _sessions(self) -> Sessions:
        return self._engine.scheduler.sharing.sessions

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
        self._broken, self._rested = 0, self._engine.scheduler.tiers.on_idle is None
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
    logging.basicConfig(level=start.log_level, format="%(asctime)s %(levelname)s engine process: %(message)s")
    clock = SystemClock()
    try:
        parts = build_engine(config_of(start.config), clock)
    except PeltonError as error:
        return _failed(error, line)
    except Exception as error:  # noqa: BLE001 - logged, and told to the parent
        _log.exception("The engine could not be built")
        return _failed(error, line)
    try:
        loop = Loop(parts.engine, line, flight, clock, parts.slots)

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
