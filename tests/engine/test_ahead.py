"""Planning ahead through the whole engine: it happens while a step runs, and nobody can tell it from an answer."""

import threading
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import (
    BLOCK,
    EOS,
    POISON,
    FakeExecutable,
    expected,
    held,
    make_engine,
    make_request,
    planning_ahead,
)

from pelton.backends.backend import StepInputs, StepOutputs
from pelton.core.clock import FakeClock
from pelton.core.config import ScheduleSection
from pelton.core.events import RequestFinished, RequestScheduled, TokensGenerated
from pelton.core.plan import StepPlan
from pelton.engine.engine import Engine
from pelton.schedule.ahead.ahead import Ahead

SEEN: Counter[str] = Counter()
LONG = 30.0
Told = tuple[list[int], list[object], str]


def ahead() -> tuple[Engine, FakeExecutable]:
    engine, executable, _ = make_engine()
    return planning_ahead(engine), executable


def take(engine: Engine, found: dict[str, Told]) -> None:
    for event in engine.step():
        tokens, logprobs, end = found.setdefault(event.request_id, ([], [], ""))
        if isinstance(event, TokensGenerated):
            tokens += event.tokens
            logprobs += event.logprobs
        elif isinstance(event, RequestFinished):
            found[event.request_id] = (tokens, logprobs, f"{event.reason} {event.stop_token} {event.error}")
    engine.check()


def run(engine: Engine, most: int = 500) -> dict[str, Told]:
    found: dict[str, Told] = {}
    for _ in range(most):
        if not engine.has_work:
            return found
        take(engine, found)
    raise AssertionError(f"not over after {most} calls")


def test_the_next_step_is_planned_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend gets no further before it is."""
    engine, executable = ahead()
    planned, threads = threading.Event(), set[int]()
    make, step = Ahead.make, FakeExecutable._step

    def making(self: Ahead, plan: StepPlan, limits: ScheduleSection) -> None:
        make(self, plan, limits)
        threads.add(threading.get_ident())
        planned.set()

    def stepping(self: FakeExecutable, inputs: StepInputs) -> StepOutputs:
        assert planned.wait(LONG)
        planned.clear()
        assert threading.get_ident() not in threads
        return step(self, inputs)

    monkeypatch.setattr(Ahead, "make", making)
    monkeypatch.setattr(FakeExecutable, "_step", stepping)
    engine.add_request(make_request("a", [1, 2, 3], 9, seed=2))
    assert run(engine)["a"][0] == expected([1, 2, 3], 2, 9)
    assert len(threads) == 1 and engine.stats.plans_ahead_total == 8 == executable.steps - 1
    engine.runner.close()


def test_without_it_there_is_no_other_thread() -> None:
    before = threading.active_count()
    engine, _, _ = make_engine()
    engine.add_request(make_request("a", [1, 2, 3], 9))
    run(engine)
    assert engine.scheduler.ahead is None and threading.active_count() == before and not engine.stats.plans_ahead_total


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=14),  # the prompt
        st.sampled_from((1, 2, 9, 17, 25)),  # tokens of the answer
        st.integers(0, 3),  # seed
        st.sampled_from(("", "", "", "logprobs", "stops", "stops", "penalty", "bad", "scored")),
        st.integers(0, 20),  # steps before it joins
    ),
    min_size=2,
    max_size=8,
)
KINDS: dict[str, dict[str, object]] = {
    "logprobs": {"logprobs": 2},
    "penalty": {"presence_penalty": 1.0},
    "scored": {"prompt_logprobs": 1},
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    REQUESTS,
    st.sampled_from((10, 11, 200, (11, 20))),
    st.sampled_from((3, 9, 64)),
    st.sampled_from((1, 1, 4)),
    st.dictionaries(st.integers(0, 30), st.tuples(st.sampled_from(("abort", "stop", "reset")), st.integers(0, 7))),
)
def check_any_company(
    requests: list[tuple[list[int], int, int, str, int]],
    blocks: int | tuple[int, int],
    budget: int,
    steps: int,
    disturbed: dict[int, tuple[str, int]],
) -> None:
    """Tokens, log-probabilities and ends are those of depth 1; of who is ended from outside, as far as both go."""
    outcomes = []
    ended = {f"r{number}" for kind, number in disturbed.values() if kind != "reset"}
    for depth in (1, 2):
        engine, _, _ = make_engine(rows=4, budget=budget, blocks=blocks, max_len=40, steps=steps)
        if depth == 2:
            planning_ahead(engine)
        engine.scheduler.series.seconds = float("inf")
        found: dict[str, Told] = {}
        waiting = sorted(enumerate(requests), key=lambda pair: pair[1][4])
        call = 0
        while waiting or engine.has_work:
            while waiting and (waiting[0][1][4] <= call or not engine.has_work):
                number, (prompt, count, seed, kind, _) = waiting.pop(0)
                tokens = [*prompt, POISON] if kind == "bad" and number else prompt
                answer = expected(tokens, seed, count)
                stops = frozenset({EOS, answer[len(answer) // 2]}) if kind == "stops" else frozenset({EOS})
                more = KINDS.get(kind, {})
                engine.add_request(make_request(f"r{number}", tokens, count, stops=stops, seed=seed, **more))
            kind, number = disturbed.get(call, ("", 0))
            if kind == "reset":
                engine.reset_prefix_cache()
            elif kind:
                (engine.abort if kind == "abort" else engine.stop)(f"r{number}")
            take(engine, found)
            call += 1
        stats = engine.stats
        assert held(engine) == 0
        if depth == 2:
            SEEN["used"] += stats.plans_ahead_total
            SEEN["trimmed"] += stats.plans_trimmed_total
            SEEN["taken back"] += stats.plans_taken_back_total
            SEEN["preempted"] += stats.preemptions_total
            SEEN["swapped"] += stats.swaps_total
            SEEN["stopped"] += sum(end.startswith("stop") and "stop None" not in end for _, _, end in found.values())
            SEEN["failed"] += sum(end.startswith("error") for _, _, end in found.values())
            SEEN["found"] += stats.prefix_hits_total
        outcomes.append(found)
        engine.runner.close()
    first, second = outcomes
    assert first.keys() == second.keys()
    for name, (tokens, logprobs, end) in first.items():
        if name not in ended:
            assert second[name] == (tokens, logprobs, end), name
        else:
            most = min(len(tokens), len(second[name][0]))
            assert second[name][0][:most] == tokens[:most]


def test_any_company() -> None:
    SEEN.clear()
    check_any_company()
    kinds = ("used", "trimmed", "taken back", "preempted", "swapped", "stopped", "failed", "found")
    assert all(SEEN[kind] for kind in kinds), SEEN


def test_after_a_step_that_breaks_all_goes_on() -> None:
    engine, executable = ahead()
    for name in "ab":
        engine.add_request(make_request(name, [1] * BLOCK, 9))
    engine.step()
    executable.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    executable.broken = False
    found = run(engine)
    assert all(found[name][2].startswith("error") for name in "ab") and held(engine) == 0
    engine.add_request(make_request("c", [1] * BLOCK, 9))
    assert run(engine)["c"][0] == expected([1] * BLOCK, 1, 9)
    assert engine.stats.plans_taken_back_total == 1


def test_an_error_in_planning_breaks_the_step_when_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executable = ahead()
    engine.add_request(make_request("a", [1, 2], 9))

    def failing(self: Ahead, plan: StepPlan, limits: ScheduleSection) -> None:
        raise AssertionError("planned wrongly")

    with monkeypatch.context() as patched:
        patched.setattr(Ahead, "make", failing)
        with pytest.raises(AssertionError, match="planned wrongly"):
            engine.step()
    assert executable.steps == 1
    assert run(engine)["a"][2].startswith("error")
    engine.add_request(make_request("b", [1, 2], 9))
    assert run(engine)["b"][0] == expected([1, 2], 1, 9)


def test_an_interrupt_in_the_backend_ends_the_requests_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executable = ahead()
    engine.add_request(make_request("a", [1, 2], 9))
    engine.step()
    step = executable._step

    def interrupted(inputs: StepInputs) -> StepOutputs:
        raise KeyboardInterrupt

    executable._step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    executable._step = step  # type: ignore[method-assign]
    assert run(engine)["a"][2].startswith("error") and held(engine) == 0
    engine.add_request(make_request("b", [1, 2], 9))
    assert run(engine)["b"][0] == expected([1, 2], 1, 9)


def test_one_whose_time_is_up_leaves_the_plan() -> None:
    engine, _ = ahead()
    clock = engine.clock
    assert isinstance(clock, FakeClock)
    late = make_request("late", [1] * BLOCK, 30)
    engine.add_request(replace(late, deadline=5.0))
    engine.add_request(make_request("other", [2] * BLOCK, 6))
    engine.step(), engine.step()
    clock.advance(6.0)
    found = run(engine)
    assert found["late"][2].startswith("error") and "not finished within" in found["late"][2]
    assert found["other"][0] == expected([2] * BLOCK, 1, 6)[2:]
    assert engine.stats.plans_trimmed_total == 1 and held(engine) == 0


def test_who_comes_while_a_step_runs_is_in_the_next_one() -> None:
    engine, _ = ahead()
    engine.add_request(make_request("a", [1, 2], 9))
    engine.step()
    engine.add_request(make_request("b", [1, 2], 9))
    assert [event.request_id for event in engine.step() if isinstance(event, RequestScheduled)] == ["b"]
    assert engine.stats.plans_ahead_total == 1
    run(engine)
