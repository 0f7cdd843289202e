"""Series of steps through the whole engine: nobody can tell from an answer whether its tokens came one by one."""

import os
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fakes import BLOCK, EOS, POISON, FakeExecutable, draw, expected, make_engine, make_request

from pelton.core.events import RequestFinished, TokensGenerated
from pelton.engine.engine import Engine

SEEN: Counter[str] = Counter()


def timeless(**sizes: int) -> tuple[Engine, FakeExecutable]:
    """An engine whose series are as long as they may be, however long a step takes."""
    engine, executable, _ = make_engine(**sizes)  # type: ignore[arg-type]
    engine.scheduler.series.seconds = float("inf")
    return engine, executable


def run(engine: Engine, most: int = 500) -> dict[str, tuple[list[int], list[object], str]]:
    """All tokens, log-probabilities and ends."""
    found: dict[str, tuple[list[int], list[object], str]] = {}
    for _ in range(most):
        if not engine.has_work:
            return found
        take(engine, found)
    raise AssertionError(f"not over after {most} calls")


def take(engine: Engine, found: dict[str, tuple[list[int], list[object], str]]) -> None:
    for event in engine.step():
        tokens, logprobs, end = found.setdefault(event.request_id, ([], [], ""))
        if isinstance(event, TokensGenerated):
            tokens += event.tokens
            logprobs += event.logprobs
        elif isinstance(event, RequestFinished):
            found[event.request_id] = (tokens, logprobs, f"{event.reason} {event.stop_token} {event.error}")
    engine.check()


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=14),  # the prompt
        st.sampled_from((1, 2, 9, 17, 25, 26)),  # tokens of the answer
        st.integers(0, 3),  # seed
        st.sampled_from(("", "", "", "logprobs", "stops", "penalty", "min tokens", "bad")),
        st.integers(0, 12),  # calls before it joins
    ),
    min_size=2,
    max_size=6,
)
KINDS: dict[str, dict[str, object]] = {
    "logprobs": {"logprobs": 2},
    "penalty": {"presence_penalty": 1.0},
    "min tokens": {"min_tokens": 5},
}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(REQUESTS, st.integers(2, 8), st.sampled_from((10, 11, 200)), st.sampled_from((3, 9, 64)), st.integers(0, 3))
def check_any_company(
    requests: list[tuple[list[int], int, int, str, int]], steps: int, blocks: int, budget: int, aborted: int
) -> None:
    """Tokens, log-probabilities and ends are those of single steps, whoever joins, is aborted, or is preempted."""
    outcomes = []
    for most in (1, steps):
        engine, executable = timeless(rows=4, budget=budget, blocks=blocks, max_len=40, steps=most)
        plans = list[int]()
        engine.on_plan = lambda plan, plans=plans: plans.append(plan.repeat)  # type: ignore[misc]
        found: dict[str, tuple[list[int], list[object], str]] = {}
        waiting = sorted(enumerate(requests), key=lambda pair: pair[1][4])
        call = 0
        while waiting or engine.has_work:
            while waiting and (waiting[0][1][4] <= call or not engine.has_work):
                number, (prompt, count, seed, kind, _) = waiting.pop(0)
                count = max(count, 5) if kind == "min tokens" else count
                tokens = [*prompt, POISON] if kind == "bad" and number else prompt
                answer = expected(tokens, seed, count)
                stops = frozenset({EOS, answer[len(answer) // 2]}) if kind == "stops" else frozenset({EOS})
                more = KINDS.get(kind, {})
                engine.add_request(make_request(f"r{number}", tokens, count, stops=stops, seed=seed, **more))
            if aborted and call == 5:
                engine.abort("r0")
                found.pop("r0", None)
            take(engine, found)
            call += 1
        SEEN["series"] += sum(plan > 1 for plan in plans)
        SEEN["preempted in series"] += engine.stats.preemptions_total > 0 and max(plans) > 1
        SEEN["stopped"] += sum(end.startswith("stop") for _, _, end in found.values())
        SEEN["failed"] += sum(end.startswith("error") for _, _, end in found.values())
        SEEN["fewer calls"] += executable.calls < executable.steps
        found.pop("r0" if aborted else "", None)
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def test_any_company() -> None:
    SEEN.clear()
    check_any_company()
    assert min(SEEN[name] for name in ("series", "preempted in series", "stopped", "failed", "fewer calls")) > 0, SEEN


def test_a_series_is_one_call_with_all_its_tokens_in_one_event() -> None:
    engine, executable = timeless(steps=8)
    engine.add_request(make_request("a", [1, 2, 3], 12, seed=4, logprobs=1))
    engine.step()
    (event,) = engine.step()
    assert isinstance(event, TokensGenerated)
    assert list(event.tokens) == expected([1, 2, 3], 4, 12)[1:9] and len(event.logprobs) == 8
    stats = engine.stats
    assert (stats.steps_total, stats.step_tokens, stats.step_steps, stats.computed_tokens_total) == (9, 8, 8, 11)
    assert executable.calls == 2 and engine.counters.get("generated_tokens") == 9


def test_the_blocks_that_a_series_fills_are_found_by_others() -> None:
    """Also where the request ends with it."""
    for count in (9, 30):
        engine, executable = timeless(steps=8)
        engine.add_request(make_request("a", [1, 2, 3], count, seed=4))
        while engine.scheduler.stats().computed_tokens_total < 11:
            engine.step()
        assert engine.stats.steps_total == 9
        known = [1, 2, 3, *expected([1, 2, 3], 4, 9)]
        before = executable.computed
        engine.add_request(make_request("b", [*known[: 2 * BLOCK], 9], 1))
        engine.abort("a")
        run(engine)
        assert executable.computed - before == 1, "all but the last token were found"


def test_no_second_step_is_begun_once_there_is_a_message() -> None:
    reader, writer = os.pipe()
    try:
        engine, executable = timeless(steps=8)
        engine.runner.wake = reader
        engine.add_request(make_request("a", [1], 40))
        engine.step(), engine.step()
        assert executable.steps == 9
        os.write(writer, b"x")
        engine.step()
        assert executable.steps == 10 and engine.stats.step_steps == 1
        os.read(reader, 1)
        engine.step()
        assert executable.steps == 18
    finally:
        os.close(reader), os.close(writer)


def test_a_fault_within_a_series_is_the_next_steps_first() -> None:
    """What was drawn before it is told, and the others lose nothing."""
    engine, executable = timeless(steps=8)
    for seed in (1, 2):
        engine.add_request(make_request(f"r{seed}", [seed], 30, seed=seed))
    engine.step()
    plain = executable._step
    fatal = expected([1], 1, 5)[-1]

    def failing(inputs):  # type: ignore[no-untyped-def]
        outputs = plain(inputs)
        outputs.faults[inputs.tokens == fatal] = 1
        return outputs

    executable._step = failing  # type: ignore[method-assign]
    found = run(engine)
    first = expected([1], 1, 30).index(fatal) + 1
    assert len(found["r1"][0]) == first - 1 and found["r1"][2].startswith("error")
    assert found["r2"][0] == expected([2], 2, 30)[1:] and fatal not in expected([2], 2, 30)


def test_what_is_known_is_what_is_drawn_next_from() -> None:
    """The fake draws by all tokens so far: one that a series lost would show in all behind it."""
    engine, _ = timeless(steps=5)
    engine.add_request(make_request("a", [7], 40))
    tokens = run(engine)["a"][0]
    assert tokens[20] == draw([7, *tokens[:20]], 1, 20)
