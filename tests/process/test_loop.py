"""The loop between its parent's messages and the engine: bad requests and broken steps harm nobody."""

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest
from tests.engine.fakes import POISON, FakeExecutable, expected, make_engine, make_request

from pelton.core.clock import FakeClock
from pelton.core.events import RequestFinished, TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.engine.process.flight import FlightRecord, shared_memory
from pelton.engine.process.loop import MOST_BROKEN, SIGN_SECONDS, Loop
from pelton.engine.process.messages import (
    Abort,
    Add,
    Ask,
    DescribeCache,
    EndSession,
    Figures,
    Finishing,
    Inbound,
    Outbound,
    Refused,
    ResetPrefixCache,
    SaveSession,
    Shutdown,
    Start,
    Step,
    Stop,
    Told,
    WireRequest,
)

Turn = Inbound | Callable[[], None]


class FakeLine:
    """Hands out one list of messages (or things to do) per turn, then the end; keeps what is sent."""

    def __init__(self, turns: list[list[Turn]]) -> None:
        self.turns = turns
        self.sent: list[Outbound] = []
        self.waited = self.woken = 0
        self.patience: list[float | None] = []

    def fileno(self) -> int:
        return -1

    def wake(self) -> None:
        self.woken += 1

    def receive(self, *, wait: bool, seconds: float | None = None) -> list[Inbound]:
        self.waited += wait
        if wait:
            self.patience.append(seconds)
        if not self.turns:
            if wait:
                raise EOFError
            return []
        messages: list[Inbound] = []
        for turn in self.turns.pop(0):
            if callable(turn):
                turn()
            else:
                messages.append(turn)
        return messages

    def send(self, message: Outbound) -> None:
        self.sent.append(message)

    def steps(self) -> list[Step]:
        return [message for message in self.sent if isinstance(message, Step)]

    def events(self) -> list[object]:
        return [event for step in self.steps() for event in step.events]

    def tokens(self, name: str) -> list[int]:
        found = [one.tokens for one in self.events() if isinstance(one, TokensGenerated) and one.request_id == name]
        return [token for tokens in found for token in tokens]

    def ends(self) -> dict[str, str]:
        return {event.request_id: event.reason for event in self.events() if isinstance(event, RequestFinished)}


def add(request: Request) -> Add:
    return Add(WireRequest.of(request), tuple(child.request_id for child in request.children()))


class World:
    """A loop over the fake executable, with its parts."""

    def __init__(self, *turns: list[Turn], **sizes: int) -> None:
        self.engine: Engine
        self.executable: FakeExecutable
        self.engine, self.executable, _ = make_engine(**sizes)
        fd = shared_memory()
        self.flight = FlightRecord(fd)
        os.close(fd)
        self.line = FakeLine(list(turns))
        self.loop = Loop(self.engine, self.line, self.flight, FakeClock())  # type: ignore[arg-type]

    def run(self) -> FakeLine:
        with pytest.raises(EOFError):
            self.loop.run()
        self.engine.check()
        return self.line


def test_one_message_per_step_for_all_requests() -> None:
    one, two = make_request("1", [1, 2, 3], 5), make_request("2", [9], 5, seed=3)
    line = World([add(one), add(two)]).run()
    assert [len(step.events) for step in line.steps()] == [4, 2, 2, 2, 4]
    assert line.tokens("1") == expected([1, 2, 3], 1, 5) and line.tokens("2") == expected([9], 3, 5)
    assert {step.taken for step in line.steps()} == {2} and line.waited == 2
    assert line.steps()[-1].stats.running == 0 and line.steps()[0].stats.running == 2


def test_requests_join_and_leave_while_others_run() -> None:
    line = World([add(make_request("1", [1], 9))], [add(make_request("2", [2], 9))], [], [Abort(("1",))]).run()
    assert line.ends() == {"1": "abort", "2": "length"} and line.tokens("2") == expected([2], 1, 9)
    assert len(line.tokens("1")) == 3


def test_an_abort_frees_all_within_the_step() -> None:
    line = World([add(make_request("1", [1] * 50, 9))], [Abort(("1", "unknown"))]).run()
    assert line.ends() == {"1": "abort"} and line.steps()[-1].stats.kv_usage == 0 and len(line.steps()) == 2


def test_a_stop_counts_as_one() -> None:
    world = World([add(make_request("1", [1], 9))], [Stop(("1",))])
    assert world.run().ends() == {"1": "stop"}
    assert world.engine.counters.snapshot()["finished_stop"] == 1


def test_a_request_that_cannot_run_is_refused_and_others_go_on() -> None:
    good, long = make_request("1", [1], 5), make_request("2", [2] * 500, 5)
    line = World([add(good), add(long)], max_len=400).run()
    (refused,) = [message for message in line.sent if isinstance(message, Refused)]
    assert refused.request_id == "2" and refused.never == ("2",) and refused.taken == 2
    assert refused.failure.kind == "RequestError" and refused.failure.code == "context_length_exceeded"
    assert line.tokens("1") == expected([1], 1, 5)


def test_of_n_answers_all_join_or_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=5)
    world = World([add(Request("1", (1, 2), params, frozenset(), 5, 0.0)), add(make_request("2", [2], 5))])
    join = world.engine.add_request

    def add_request(request: Request) -> None:
        if request.request_id == "1/2":
            raise KeyError("a bug")
        join(request)

    monkeypatch.setattr(world.engine, "add_request", add_request)
    line = world.run()
    (refused,) = [message for message in line.sent if isinstance(message, Refused)]
    assert (refused.request_id, refused.never, refused.failure.kind) == ("1", ("1/2",), "")
    assert line.ends() == {"1": "abort", "1/1": "abort", "2": "length"} and "a bug" in caplog.text


def test_parameters_that_cannot_be_are_refused() -> None:
    wire = WireRequest("1", (1,), {"temperature": -1.0}, frozenset(), 5, 0.0, 0, (), b"", "")
    line = World([Add(wire, ("1",))]).run()
    (refused,) = [message for message in line.sent if isinstance(message, Refused)]
    assert refused.failure.param == "temperature"


def test_a_broken_step_fails_those_in_it_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.line.turns = [
        [add(make_request("first", [1], 50))],
        [lambda: setattr(world.executable, "broken", True)],
        [lambda: setattr(world.executable, "broken", False)],
        [add(make_request("second", [1], 3))],
    ]
    line = world.run()
    assert line.ends() == {"first": "error", "second": "length"} and line.tokens("second") == expected([1], 1, 3)
    assert "A step broke: step 2 was being computed: 1 tokens of 1 rows: first [1, 2)" in caplog.text


def test_a_sequence_with_bad_logits_ends_alone() -> None:
    line = World([add(make_request("1", [1, POISON], 5)), add(make_request("2", [2], 5))]).run()
    assert line.ends() == {"1": "error", "2": "length"}


def test_steps_that_break_again_and_again_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([add(make_request("1", [1], 50))])

    def step() -> list[object]:
        raise RuntimeError("always")

    monkeypatch.setattr(world.engine, "step", step)
    with pytest.raises(RuntimeError, match="always"):
        world.loop.run()
    assert len(world.line.turns) == 0 and world.line.sent == [] and MOST_BROKEN > 1


def test_told_to_finish_it_ends_with_the_last_open_request() -> None:
    world = World()
    world.line.turns = [
        [add(make_request("1", [1], 6))],
        [world.loop.finish],
        [add(make_request("2", [2], 6))],
    ]
    assert world.loop.run() == "it was told to end by a signal"
    assert world.line.ends() == {"1": "length"}
    (refused,) = [message for message in world.line.sent if isinstance(message, Refused)]
    assert refused.request_id == "2" and refused.failure.kind == "EngineDeadError"
    told = world.line.sent.index(Finishing())
    assert world.line.sent.count(Finishing()) == 1 and told < world.line.sent.index(refused)


def test_told_to_shut_down_it_ends_at_once() -> None:
    world = World([add(make_request("1", [1], 6))], [Shutdown()])
    assert world.loop.run() == "it was told to end" and world.line.ends() == {}


def test_the_prefix_cache_is_reset() -> None:
    prompt = list(range(64))
    world = World([add(make_request("1", prompt, 2))], [], [], [Ask(7, ResetPrefixCache())])
    world.engine.scheduler.reset_prefix_cache()
    line = world.run()
    (reset,) = [message for message in line.sent if isinstance(message, Told)]
    assert line.steps()[-1].stats.cached_blocks > 0
    assert (reset.number, reset.body, reset.failure) == (7, b"", None)
    assert reset.stats.cached_blocks == 0 == reset.stats.step_tokens and reset.stats.steps_total == 2


def test_questions_are_answered_between_steps() -> None:
    prompt = list(range(64))
    request = replace(make_request("1", prompt, 2), session_id="s")
    end = EndSession(("", "s"))
    turns: list[list[Turn]] = [[add(request)], [Ask(1, DescribeCache(5))], [], [Ask(2, DescribeCache(0))]]
    line = World(*turns, [Ask(3, end), Ask(4, end)]).run()
    told = [message for message in line.sent if isinstance(message, Told)]
    bodies = {message.number: message.body for message in told}
    assert [message.stats.sessions for message in told] == [0, 1, 0, 0] and told[-1].stats.held_blocks == 0
    running, over = json.loads(bodies[1]), json.loads(bodies[2])
    assert running["groups"][0]["held"] > 0 and running["sessions"]["open"] == 0 and running["waste"] == 0
    assert over["sessions"]["open"] == 1 and over["sessions"]["blocks"] == over["groups"][0]["held"] > 0
    assert int(bodies[3]) >= 64 and bodies[4] == b""


def test_a_second_start_changes_nothing() -> None:
    line = World([Start("{}", 1, 0), add(make_request("1", [1], 3))]).run()
    assert line.ends() == {"1": "length"}


def test_a_reset_is_answered_when_files_are_gone_and_the_loop_waits_for_that() -> None:
    """What takes long is done one after the other; what is asked meanwhile and is quick is answered at once."""
    world = World()
    over: Future[None] = Future()
    world.engine.scheduler.tiers.reset = lambda: over  # type: ignore[method-assign]
    slow, quick = Ask(1, ResetPrefixCache()), Ask(2, EndSession(("", "s")))
    world.line.turns = [[slow], [quick], [], [lambda: over.set_result(None)]]
    line = world.run()
    told = [message.number for message in line.sent if isinstance(message, Told)]
    assert told == [2, 1] and line.woken == 1
    assert line.patience[1:4] == [SIGN_SECONDS] * 3 and line.patience[-1] is None
    assert sum(isinstance(message, Figures) for message in line.sent) >= 2, "a sign of life each time nothing was asked"


def test_told_to_finish_it_ends_what_it_was_asked() -> None:
    world = World()
    over: Future[None] = Future()
    world.engine.scheduler.tiers.reset = lambda: over  # type: ignore[method-assign]
    world.line.turns = [[Ask(1, ResetPrefixCache())], [world.loop.finish], [], [lambda: over.set_result(None)]]
    assert world.loop.run() == "it was told to end by a signal"
    assert [message.number for message in world.line.sent if isinstance(message, Told)] == [1]


def test_what_cannot_be_done_is_told_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    failed: Future[None] = Future()
    failed.set_exception(ZeroDivisionError("a bug"))
    world.engine.scheduler.tiers.reset = lambda: failed  # type: ignore[method-assign]
    world.line.turns = [[Ask(1, ResetPrefixCache())], [], [add(make_request("1", [1], 3))]]
    line = world.run()
    (told,) = [message for message in line.sent if isinstance(message, Told)]
    assert told.failure is not None and told.failure.kind == "PeltonError" and "a bug" in told.failure.cause
    assert line.tokens("1") == expected([1], 1, 3) and "Question 1 could not be answered" in caplog.text
    with pytest.raises(RuntimeError, match="build_engine"):
        World([Ask(1, SaveSession(("", "s"), b"/x"))]).loop.run()


def test_sessions_end_by_time_where_nobody_asks_for_anything() -> None:
    clock = FakeClock()
    world = World()
    world.loop = Loop(world.engine, world.line, world.flight, clock)  # type: ignore[arg-type]
    request = replace(make_request("1", list(range(64)), 2), session_id="s")
    world.line.turns = [[add(request)], [], [], [], [lambda: clock.advance(600.5)]]
    line = world.run()
    assert 600 < (line.patience[1] or 0) < 600.1 and line.patience[-1] is None
    (told,) = [message for message in line.sent if isinstance(message, Figures)]
    assert told.stats.sessions == told.stats.held_blocks == 0 < told.stats.cached_blocks
    assert line.steps()[-1].stats.sessions == 1


def test_what_is_cached_goes_to_files_when_the_last_answer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Not before: somebody waits for that. Once after each last step, whatever becomes of it."""
    world, told = World(), list[int]()

    def on_idle() -> None:
        told.append(sum(isinstance(event, RequestFinished) for step in world.line.steps() for event in step.events))
        raise OSError("the disk is gone")

    world.engine.scheduler.tiers.on_idle = on_idle
    world.line.turns = [[add(make_request("1", [1, 2], 2))], [], [], [add(make_request("2", [1, 2], 2))], [], [], []]
    line = world.run()
    assert told == [1, 2] and line.patience.count(0.0) == 2 and caplog.text.count("could not be kept") == 2
