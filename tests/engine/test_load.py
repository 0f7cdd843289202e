"""What an engine takes on: deadlines, advice on preemptions, the size of a step by a target, weights of owners."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.fakes import expected, held, make_engine, make_request
from tests.program.test_coordinates import module

from pelton.backends.backend import Rates
from pelton.backends.cpu.backend import CpuBackend
from pelton.core.clock import FakeClock
from pelton.core.config import BLOCK_TOKENS, ScheduleSection, resolve
from pelton.core.counters import EngineStats
from pelton.core.errors import SettingError
from pelton.core.events import Event, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request, owner_of_key
from pelton.engine.engine import Engine
from pelton.engine.llm import LLM
from pelton.engine.load.budget import LEAST, MOST, MOST_TIMED, TIMED, choose_budget, step_seconds, timed_budget
from pelton.engine.load.deadlines import LATE, Deadlines
from pelton.engine.load.preemptions import EVERY_SECONDS, WINDOW_SECONDS, PreemptionAdvice
from pelton.engine.load.preemptions import LEAST as FEW
from pelton.engine.load.weights import owner_weights
from pelton.engine.needs import check_names
from pelton.program.module import Module

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def tiny_module() -> Module:
    return module(max_position_embeddings=2 * MOST)


def timed(name: str, deadline: float | None, count: int = 30, **kind: object) -> Request:
    return replace(make_request(name, PROMPT, count, **kind), deadline=deadline)  # type: ignore[arg-type]


def clock_of(engine: Engine) -> FakeClock:
    assert isinstance(engine.clock, FakeClock)
    return engine.clock


def ends(events: list[Event]) -> list[RequestFinished]:
    return [event for event in events if isinstance(event, RequestFinished)]


# ---- deadlines -------------------------------------------------------------------------------------------------------


def test_who_is_late_ends_with_an_error_and_frees_everything_at_once() -> None:
    engine, _, _ = make_engine(rows=1)
    engine.add_request(timed("running", 5.0))
    engine.add_request(timed("waiting", 3.0))
    engine.add_request(timed("patient", None))
    assert not ends(engine.step())
    clock_of(engine).advance(3.0)
    (end,) = ends(engine.step())
    assert (end.request_id, end.reason, end.code) == ("waiting", "error", LATE)
    assert end.error == "The request was not finished within the 3 s that it was given."
    clock_of(engine).advance(1.5)
    assert not ends(engine.step()) and held(engine) > 0
    clock_of(engine).advance(0.5)
    events = engine.step()
    assert [end.request_id for end in ends(events)] == ["running"]
    assert [event.request_id for event in events if isinstance(event, RequestScheduled)] == ["patient"], (
        "its row is free"
    )
    engine.check()
    assert engine.counters.get("timed_out") == engine.counters.get("finished_error") == 2
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for event in events if isinstance(event, TokensGenerated) for token in event.tokens]
        events = engine.step()
    tokens += [token for event in events if isinstance(event, TokensGenerated) for token in event.tokens]
    assert tokens == expected(PROMPT, 1, 30), "others draw the same tokens"
    assert held(engine) == 0


def test_the_last_one_to_be_late_leaves_an_idle_engine() -> None:
    engine, executable, _ = make_engine()
    engine.add_request(timed("only", 1.0))
    engine.step()
    clock_of(engine).advance(2.0)
    steps = executable.steps
    assert len(ends(engine.step())) == 1 and not engine.has_work and executable.steps == steps
    assert engine.step() == [] and engine.counters.get("check_failures") == 0


def test_who_ended_in_time_is_never_late_nor_is_the_next_of_its_id() -> None:
    engine, _, _ = make_engine()
    engine.add_request(timed("a", 10.0, count=1))
    assert [end.reason for end in ends(engine.step())] == ["length"]
    engine.add_request(timed("b", 10.0))
    engine.abort("b")
    engine.step()
    engine.add_request(timed("a", 50.0, count=3))
    engine.add_request(timed("b", None, count=3))
    clock_of(engine).advance(20.0)
    reasons = {}
    while engine.has_work:
        reasons |= {end.request_id: end.reason for end in ends(engine.step())}
    assert reasons == {"a": "length", "b": "length"} and engine.counters.get("timed_out") == 0


def test_times_of_requests_that_are_over_are_not_kept() -> None:
    deadlines = Deadlines()
    for number in range(20_000):
        name = f"r{number}"
        deadlines.add(timed(name, 1e5))
        if number % 100:
            deadlines.over(name)
    assert len(deadlines._open) == 200 and len(deadlines._heap) <= 2 * 200 + 1001
    assert deadlines.late(2e5) and not deadlines._open and not deadlines._heap


def test_all_answers_of_a_late_request_end() -> None:
    engine, _, _ = make_engine()
    for request in timed("many", 2.0, n=3).children():
        engine.add_request(request)
    engine.step()
    clock_of(engine).advance(2.0)
    assert sorted(end.request_id for end in ends(engine.step())) == ["many", "many/1", "many/2"]
    assert held(engine) == 0


# ---- advice on preemptions -------------------------------------------------------------------------------------------


def events_of(began: int, preempted: int) -> list[Event]:
    scheduled: list[Event] = [RequestScheduled(str(number)) for number in range(began)]
    return scheduled + [RequestPreempted(str(number)) for number in range(preempted)]


STATS = EngineStats(running=3, kv_blocks=40)


def test_occasional_preemptions_are_not_worth_a_word() -> None:
    advice = PreemptionAdvice(8)
    assert all(advice.saw(events_of(1, 1), STATS, 100.0 * second) is None for second in range(50)), "few in the window"
    advice = PreemptionAdvice(8)
    assert all(advice.saw(events_of(20, 1), STATS, float(second)) is None for second in range(100)), "a small share"


def test_many_are_with_figures_and_seldom() -> None:
    advice = PreemptionAdvice(8)
    said = [(second, text) for second in range(1200) if (text := advice.saw(events_of(1, 1), STATS, float(second)))]
    assert [second for second, _ in said] == [FEW - 1, FEW - 1 + EVERY_SECONDS]
    assert said[0][1] == (
        f"{FEW} preemptions in {FEW - 1} s, for {FEW} starts of requests: the KV cache has 40 blocks, and requests "
        "that run together need more. What they lost is computed again or copied twice. Raise "
        "kv_cache_memory_bytes, or set "
        "max_num_seqs=3: so many fit at present."
    )
    assert f" in {WINDOW_SECONDS:.0f} s" in said[1][1]


def test_the_engine_says_it(caplog: pytest.LogCaptureFixture) -> None:
    engine, _, _ = make_engine(rows=8, blocks=14, budget=32)
    for number in range(60):
        engine.add_request(make_request(f"r{number}", [number % 250] * 9, 30))
    with caplog.at_level(logging.WARNING, "pelton"):
        while engine.has_work:
            engine.step()
    said = [record.message for record in caplog.records if "preemptions in" in record.message]
    assert len(said) == (engine.counters.get("preemptions") >= FEW)


# ---- the size of a step ----------------------------------------------------------------------------------------------

FAST = Rates(1e15, 1e18, "probed then")


def section(target: int | None, **sizes: int) -> ScheduleSection:
    return ScheduleSection(itl_target_ms=target, **sizes)  # type: ignore[arg-type]


def test_the_largest_step_below_the_target(tiny_module: Module) -> None:
    for tokens in (LEAST, 5 * BLOCK_TOKENS, 12 * BLOCK_TOKENS):
        # A machine on which so many tokens take a little less than 50 ms, and a tile more takes longer.
        rates = Rates(1e15, 1.0, "probed then")
        rates = replace(rates, flops_per_s=step_seconds(tiny_module, tokens, rates) / 0.0499)
        budget = choose_budget(tiny_module, section(50), rates)
        assert budget.tokens == tokens and budget.why == "about 50 ms, 50 ms aimed at (probed then)"
        assert choose_budget(tiny_module, section(51), rates).tokens >= tokens
        assert choose_budget(tiny_module, section(49), rates).tokens <= tokens


def test_there_is_a_least_and_a_most(tiny_module: Module) -> None:
    slow = Rates(1.0, 1.0, "probed then")
    assert choose_budget(tiny_module, section(100), slow).tokens == LEAST
    assert "the least there is" in choose_budget(tiny_module, section(100), slow).why
    assert choose_budget(tiny_module, section(100, max_num_seqs=100), slow).tokens == 128, "a token for each request"
    assert choose_budget(tiny_module, section(100), FAST).tokens == min(MOST, tiny_module.context)


def test_without_a_target_it_is_what_the_settings_say(tiny_module: Module) -> None:
    assert choose_budget(tiny_module, section(None, max_num_batched_tokens=77), FAST).tokens == 77
    assert choose_budget(tiny_module, section(0), FAST).tokens == 256


def test_one_request_at_a_time_holds_up_nobody(tiny_module: Module) -> None:
    for rates in (None, FAST, Rates(1.0, 1.0, "probed then")):
        budget = choose_budget(tiny_module, section(100, max_num_seqs=1), rates)
        assert budget.tokens == 256 and not budget.open and "holds up nobody" in budget.why


def test_rates_of_a_busy_machine_are_none(tiny_module: Module) -> None:
    assert choose_budget(tiny_module, section(100), replace(FAST, busy=True)) == choose_budget(
        tiny_module, section(100), None
    )


def test_without_rates_two_steps_are_timed(tiny_module: Module) -> None:
    unknown = choose_budget(tiny_module, section(100), None)
    assert unknown.open and unknown.tokens == MOST_TIMED
    assert choose_budget(tiny_module, section(100, max_num_seqs=600), None).tokens == 608, "a token for each request"
    # 5 ms and 0.4 ms for each further token: 238 tokens take 100 ms.
    found = timed_budget(unknown, section(100), 0.005, 0.005 + 0.0004 * (TIMED - 1))
    assert found.tokens == 224 and found.why == "about 94 ms, 100 ms aimed at (timed at the start)" and not found.open
    assert timed_budget(unknown, section(100), 1e-5, 2e-5).tokens == MOST_TIMED
    assert timed_budget(unknown, section(100), 2e-5, 1e-5).tokens == MOST_TIMED, "noise"
    assert timed_budget(unknown, section(100), 1.0, 9.0).tokens == LEAST
    assert timed_budget(unknown, section(100, max_num_seqs=600), 1.0, 9.0).tokens == 608


@pytest.mark.parametrize("kept", [None, Rates(1e12, 1e15, "probed then")])
def test_a_start_says_why_its_steps_are_as_they_are(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, kept: Rates | None
) -> None:
    monkeypatch.setattr(CpuBackend, "rates", lambda *about, **more: kept)
    for settings, said in (
        ({}, "timed at the start" if kept is None else "probed then"),
        ({"max_num_batched_tokens": 48}, "as set"),
        ({"itl_target_ms": 0}, "no target for gaps between tokens (itl_target_ms 0)"),
        ({"itl_target_ms": 0, "max_num_batched_tokens": 48}, "no target for gaps"),
    ):
        with LLM(str(tiny_model), max_num_seqs=3, **settings) as llm:
            report = llm.report
            limits = llm._parts.session.engine.scheduler.limits
            assert said in report.step and limits.max_num_batched_tokens == report.max_num_batched_tokens
            assert f"step     at most {report.max_num_batched_tokens} tokens: " in "\n".join(report.lines())
            outputs = llm.generate(
                ["abc", "abd"] * 4, SamplingParams(max_tokens=5, seed=1, ignore_eos=True), use_tqdm=False
            )
            assert all(output.outputs[0].finish_reason == "length" for output in outputs)


def test_a_size_that_is_set_wins_and_two_wishes_are_one_too_many() -> None:
    assert resolve("m", {}).schedule.itl_target_ms == 100
    assert resolve("m", {"itl_target_ms": 40}).schedule.itl_target_ms == 40
    assert resolve("m", {"max_num_batched_tokens": 64}).schedule.itl_target_ms is None
    assert resolve("m", {"max_num_batched_tokens": 64, "itl_target_ms": 0}).schedule.itl_target_ms == 0
    with pytest.raises(SettingError, match="max_num_batched_tokens=64 and itl_target_ms=40 both"):
        resolve("m", {"max_num_batched_tokens": 64, "itl_target_ms": 40})


# ---- weights of owners -----------------------------------------------------------------------------------------------


def test_a_name_is_a_users_or_a_keys() -> None:
    weights = owner_weights('{"alice": 2, "secret-key": 0.5}')
    assert weights["alice"] == 2 and weights[owner_of_key("secret-key")] == 0.5
    assert "secret" not in owner_of_key("secret-key") and owner_of_key("a") != owner_of_key("b")


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 0}', '{"a": -1}', '{"a": true}', '{"a": "x"}', '{"a": NaN}'])
def test_what_is_no_table_of_weights_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="fairness_weights"):
        check_names(resolve("m", {"scheduling_policy": "fair", "fairness_weights": text}))


def test_weights_are_for_an_order_that_looks_at_them() -> None:
    check_names(resolve("m", {"scheduling_policy": "fair", "fairness_weights": {"a": 2}}))
    with pytest.raises(SettingError, match=r"would have no effect.*scheduling_policy to fair"):
        check_names(resolve("m", {"fairness_weights": '{"a": 2}'}))
