"""Engine over a fake executable: the same tokens alone, together, chunked, preempted; and every way to end."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import BLOCK, POISON, expected, held, make_engine, make_request

from pelton.core.errors import RequestError
from pelton.core.events import Event, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.engine.engine import Engine
from pelton.schedule import ORDERS

PROMPTS = [[(7 * n + i * i) % 250 for i in range(length)] for n, length in enumerate((1, 3, 4, 5, 9, 16, 17, 40))]


def run(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.check()
    return events


def answers(events: list[Event]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, TokensGenerated):
            found.setdefault(event.request_id, []).extend(event.tokens)
    return found


def reasons(events: list[Event]) -> dict[str, str]:
    return {event.request_id: event.reason for event in events if isinstance(event, RequestFinished)}


def fill(engine: Engine, count: int = 20) -> dict[str, list[int]]:
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(make_request(f"r{number}", prompt, count, seed=number * 1000))
    return {f"r{number}": expected(prompt, number * 1000, count) for number, prompt in enumerate(PROMPTS)}


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_alone(number: int) -> None:
    engine, _, _ = make_engine()
    engine.add_request(make_request("one", PROMPTS[number], 20, seed=5))
    events = run(engine)
    assert answers(events) == {"one": expected(PROMPTS[number], 5, 20)} and reasons(events) == {"one": "length"}
    assert held(engine) == 0


@pytest.mark.parametrize("budget", [1, 2, 7, 16, 1000])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_together_in_any_chunks(rows: int, budget: int) -> None:
    engine, executable, _ = make_engine(rows=rows, budget=budget)
    wanted = fill(engine)
    assert answers(run(engine)) == wanted
    assert executable.largest <= budget and held(engine) == 0
    if budget > 16 and rows == 8:
        assert executable.steps == 20, "all prompts in the first step, then one token a step"


@pytest.mark.parametrize("budget", [5, 7, 64])
@pytest.mark.parametrize("blocks", [15, 18, 25])
def test_preempted_in_a_tiny_pool(blocks: int, budget: int) -> None:
    engine, _, _ = make_engine(blocks=blocks, budget=budget)
    wanted = fill(engine)
    events = run(engine)
    assert answers(events) == wanted and held(engine) == 0
    preempted = [event.request_id for event in events if isinstance(event, RequestPreempted)]
    assert preempted and "r0" not in preempted
    again = [event.request_id for event in events if isinstance(event, RequestScheduled)]
    assert sorted(again) == sorted([*wanted, *preempted]), "each is scheduled once, and once more per preemption"


@pytest.mark.parametrize("order", ORDERS.names())
def test_no_order_changes_a_token(order: str) -> None:
    engine, _, _ = make_engine(rows=6, blocks=26, budget=24, order=order)
    base, wanted = [(5 * place) % 250 for place in range(24)], {}
    for number in range(40):
        prompt = base[: 4 + number % 20] + [number] * (1 + number % 5)
        request = make_request(f"r{number}", prompt, 10, seed=number)
        engine.add_request(replace(request, arrival=number / 7, priority=number % 3, owner=f"owner {number % 4}"))
        wanted[f"r{number}"] = expected(prompt, number, 10)
    events = run(engine)
    assert answers(events) == wanted and held(engine) == 0
    assert engine.stats.preemptions_total and engine.stats.prefix_hits_total


def test_ten_times_oversubscribed() -> None:
    engine, _, _ = make_engine(rows=6, blocks=24, budget=32)
    wanted = {}
    for number in range(60):
        prompt = PROMPTS[number % 8][:20] + [number]
        wanted[f"q{number}"] = expected(prompt, number, 15)
        engine.add_request(make_request(f"q{number}", prompt, 15, seed=number))
    events = run(engine)
    assert answers(events) == wanted and held(engine) == 0
    preemptions = sum(isinstance(event, RequestPreempted) for event in events)
    assert 0 < preemptions < 60, "preemption happens and is bounded"


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(16, 30), st.sampled_from([0, 3])),
    arrivals=st.lists(st.integers(0, 40), min_size=len(PROMPTS), max_size=len(PROMPTS)),
    aborts=st.dictionaries(st.integers(0, 60), st.integers(0, 7), max_size=4),
)
def test_arrivals_and_aborts_change_no_other_answer(
    sizes: tuple[int, int, int, int], arrivals: list[int], aborts: dict[int, int]
) -> None:
    rows, budget, blocks, cap = sizes
    engine, _, _ = make_engine(rows=rows, budget=budget, blocks=blocks, cap=cap)
    events: list[Event] = []
    aborted = set()
    step = 0
    while step <= max(arrivals) or engine.has_work:
        for number in range(len(PROMPTS)):
            if arrivals[number] == step:
                engine.add_request(make_request(f"r{number}", PROMPTS[number], 12, seed=number))
        if step in aborts:
            gone = f"r{aborts[step]}"
            engine.abort(gone)
            aborted.add(gone)
        events += engine.step()
        engine.check()
        step += 1
    assert held(engine) == 0
    ended, given_out = reasons(events), answers(events)
    assert len(ended) == len(PROMPTS)
    for number, prompt in enumerate(PROMPTS):
        name, whole = f"r{number}", expected(prompt, number, 12)
        got = given_out.get(name, [])
        if ended[name] == "abort":
            assert name in aborted and got == whole[: len(got)]
        else:
            assert got == whole


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_frees_at_once_in_each_state(steps: int) -> None:
    engine, _, _ = make_engine(rows=1, budget=8)
    engine.add_request(make_request("running", PROMPTS[6], 20))
    engine.add_request(make_request("waiting", PROMPTS[6], 20))
    for _ in range(steps):
        engine.step()
    engine.abort("waiting")
    engine.abort("running")
    engine.check()
    assert held(engine) == 0
    engine.abort("running")
    engine.abort("unknown")
    events = engine.step()
    assert sorted(reasons(events).items()) == [("running", "abort"), ("waiting", "abort")] and not engine.has_work
    engine.add_request(make_request("next", PROMPTS[4], 3))
    assert answers(run(engine)) == {"next": expected(PROMPTS[4], 1, 3)}


def test_preempted_and_then_aborted() -> None:
    engine, _, _ = make_engine(blocks=15, budget=64)
    fill(engine)
    gone: list[str] = []
    while not gone:
        gone = [event.request_id for event in engine.step() if isinstance(event, RequestPreempted)]
    engine.abort(gone[0])
    engine.check()
    assert reasons(run(engine))[gone[0]] == "abort" and held(engine) == 0


def test_stop_ids_end_with_the_token() -> None:
    whole = expected(PROMPTS[3], 1, 20)
    stop = whole[7]
    engine, _, _ = make_engine()
    engine.add_request(make_request("one", PROMPTS[3], 20, stops=frozenset({stop, 255})))
    events = run(engine)
    first = whole.index(stop)
    assert answers(events) == {"one": whole[: first + 1]}
    assert events[-1] == RequestFinished("one", "stop", stop_token=stop)


def test_length_ends_at_max_tokens_and_at_the_model_s_length() -> None:
    engine, _, _ = make_engine(max_len=24)
    engine.add_request(make_request("short", PROMPTS[4], 5))
    engine.add_request(make_request("long", PROMPTS[4], 500))
    events = run(engine)
    assert {name: len(tokens) for name, tokens in answers(events).items()} == {"short": 5, "long": 24 - 9}
    assert reasons(events) == {"short": "length", "long": "length"}


def test_a_request_that_outgrows_the_pool_ends_by_length() -> None:
    engine, _, _ = make_engine(blocks=6)
    engine.add_request(make_request("one", PROMPTS[4], 500))
    engine.add_request(make_request("two", PROMPTS[4], 500))
    events = run(engine)
    assert [len(tokens) for tokens in answers(events).values()] == [15, 15] and held(engine) == 0


def test_nan_fails_only_its_request() -> None:
    engine, _, _ = make_engine(budget=7)
    wanted = fill(engine)
    engine.add_request(make_request("bad", [1, POISON, 2], 9))
    events = run(engine)
    assert answers(events) == wanted and held(engine) == 0
    (ended,) = [event for event in events if isinstance(event, RequestFinished) and event.request_id == "bad"]
    assert ended.reason == "error" and "NaN" in (ended.error or "")
    assert engine.counters.get("finished_error") == 1 and engine.counters.get("finished_length") == len(PROMPTS)


def test_a_broken_step_fails_its_requests_and_the_engine_goes_on() -> None:
    engine, executable, _ = make_engine()
    fill(engine)
    engine.step()
    executable.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    executable.broken = False
    engine.check()
    assert held(engine) == 0
    events = engine.step()
    assert set(reasons(events).values()) == {"error"} and len(events) == len(PROMPTS) and not engine.has_work
    wanted = fill(engine)
    assert answers(run(engine)) == wanted


def test_sessions_hold_nothing_that_a_broken_step_was_to_load() -> None:
    engine, executable, _ = make_engine(blocks=(60, 40))
    prompt = list(range(BLOCK + 2))
    engine.add_request(replace(make_request("one", prompt, 9), session_id="s"))
    engine.step()
    engine.scheduler.preempt("one")
    executable.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    assert engine.last_plan is not None and "load" in {op.kind for op in engine.last_plan.state_ops}
    assert engine.scheduler.sharing.sessions.held(("", "s")) is None
    engine.check()
    executable.broken = False
    engine.add_request(make_request("again", prompt, 2))
    assert reasons(run(engine)) == {"one": "error", "again": "length"}


def test_requests_that_cannot_go_on_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of steps without end in which nothing happens."""
    engine, _, _ = make_engine()
    fill(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "plan", lambda now: None)
        with pytest.raises(RuntimeError, match="no progress with 8 open requests"):
            engine.step()
    assert set(reasons(engine.step()).values()) == {"error"} and held(engine) == 0


def test_a_refused_request_harms_nothing() -> None:
    engine, _, _ = make_engine(max_len=30)
    with pytest.raises(RequestError, match="has 40 tokens"):
        engine.add_request(make_request("r7", PROMPTS[7], 5))
    engine.check()
    assert not engine.has_work and engine.step() == []


def test_logprobs_come_with_their_tokens() -> None:
    engine, _, _ = make_engine()
    engine.add_request(make_request("with", PROMPTS[3], 4, logprobs=2))
    engine.add_request(make_request("drawn", PROMPTS[3], 4, logprobs=0))
    engine.add_request(make_request("without", PROMPTS[3], 4))
    for event in run(engine):
        if isinstance(event, TokensGenerated):
            (token,) = event.tokens
            if event.request_id == "without":
                assert event.logprobs == ()
                continue
            (one,) = event.logprobs
            assert (one.logprob, one.rank) == (-(token + 1) / 8, token % 3 + 1)
            assert one.top_ids == ((token, token + 1) if event.request_id == "with" else ())


def test_events_of_a_request_are_in_order() -> None:
    engine, _, _ = make_engine(blocks=15)
    fill(engine)
    events = run(engine)
    for name in reasons(events):
        mine = [type(event) for event in events if event.request_id == name]
        assert mine[0] is RequestScheduled and mine[-1] is RequestFinished and mine.count(RequestFinished) == 1
        for one, other in pairwise(mine):
            assert (one is RequestPreempted) <= (other is RequestScheduled)


def test_what_ends_is_counted_at_once() -> None:
    engine, _, _ = make_engine()
    for name in ("gone", "stopped", "done"):
        engine.add_request(make_request(name, PROMPTS[3], 1 if name == "done" else 9))
    engine.step()
    engine.abort("gone")
    engine.stop("stopped")
    engine.stop("done")  # its last token completed a stop string
    engine.stop("unknown")
    kinds = {name: engine.counters.get(f"finished_{name}") for name in ("abort", "stop", "length")}
    assert kinds == {"abort": 1, "stop": 2, "length": 0}
    assert reasons(engine.step()) == {"gone": "abort", "stopped": "stop"}
    engine.stop("done")
    assert kinds == {name: engine.counters.get(f"finished_{name}") for name in kinds}, "each counts once"


@pytest.mark.parametrize("end", ["length", "abort", "broken"])
def test_books_that_do_not_add_up_are_told_when_idle(end: str, caplog: pytest.LogCaptureFixture) -> None:
    engine, executable, pool = make_engine()
    assert answers(fill_and_run(engine)) and not engine.counters.get("check_failures") and not caplog.records
    engine.add_request(make_request("one", PROMPTS[3], 2))
    engine.step()
    pool._free.pop()
    if end == "abort":
        engine.abort("one")
    executable.broken = end == "broken"
    with pytest.raises(RuntimeError) if end == "broken" else nullcontext():
        engine.step()
    assert engine.counters.get("check_failures") == 1
    (record,) = caplog.records
    assert record.levelname == "ERROR" and "blocks" in record.getMessage()


def fill_and_run(engine: Engine) -> list[Event]:
    fill(engine)
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    return events


@pytest.mark.parametrize("slots", [4, 100])
@pytest.mark.parametrize("prefixes", [True, False])
@pytest.mark.parametrize("budget", [5, 64])
def test_preempted_requests_wait_in_host_memory(budget: int, prefixes: bool, slots: int) -> None:
    engine, executable, _ = make_engine(blocks=(15, slots), budget=budget, prefixes=prefixes)
    wanted = fill(engine)
    assert answers(run(engine)) == wanted and held(engine) == 0
    stats = engine.stats
    assert stats.swaps_total and stats.loaded_blocks_total and not stats.swapped and not stats.host_slots_used
    if slots == 100 and not prefixes:
        assert stats.swaps_total == stats.preemptions_total
        assert executable.computed == sum(len(prompt) + 19 for prompt in PROMPTS), "nothing is computed twice"
