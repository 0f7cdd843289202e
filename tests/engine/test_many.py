"""Several answers to one prompt, scored prompts, shared prefixes and faults, over the fake executable."""

from collections.abc import Callable

import pytest
from tests.engine.conftest import FakeLLM
from tests.engine.fakes import BLOCK, POISON, draw, expected, held, make_engine, make_request, score
from tests.engine.test_engine import answers, reasons, run

from pelton.core.errors import RequestError
from pelton.core.events import (
    Event,
    PromptScored,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    TokensGenerated,
)
from pelton.core.params import SamplingParams
from pelton.core.plan import StepPlan
from pelton.core.request import Logprob, RequestOutput
from pelton.engine.engine import Engine
from pelton.engine.outputs import StreamPiece

Make = Callable[..., FakeLLM]
PROMPT = list(b"a prompt of several blocks")  # 26 tokens: six full blocks and half of one


def children(output: RequestOutput) -> list[list[int]]:
    return [answer.token_ids for answer in output.outputs]


def add(engine: Engine, name: str, prompt: list[int], count: int, **params: object) -> None:
    for sequence in make_request(name, prompt, count, **params).children():  # type: ignore[arg-type]
        engine.add_request(sequence)


# ---- several answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefixes", [True, False])
@pytest.mark.parametrize("prompt", ["h", "four", PROMPT[:25], PROMPT], ids=len)
@pytest.mark.parametrize("sizes", [{}, {"rows": 2}, {"rows": 1, "budget": 3}, {"blocks": 14, "budget": 5}], ids=str)
def test_n_answers_are_those_of_each_child_alone(
    fake_llm: Make, prompt: str | list[int], sizes: dict[str, int], prefixes: bool
) -> None:
    fake = fake_llm(prefixes=prefixes, **sizes)
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    params = SamplingParams(n=3, seed=5, max_tokens=12)
    (output,) = fake.llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
    assert children(output) == [expected(ids, 5, 12, child) for child in range(3)]
    assert [answer.index for answer in output.outputs] == [0, 1, 2] and output.finished
    assert {answer.finish_reason for answer in output.outputs} == {"length"}
    assert len({tuple(tokens) for tokens in children(output)}) == 3
    (two,) = fake.llm.generate({"prompt_token_ids": ids}, SamplingParams(n=2, seed=5, max_tokens=12), use_tqdm=False)
    assert children(two) == children(output)[:2], "whatever n is"
    assert fake.held == 0
    fake.session.engine.check()


def test_the_prompt_is_computed_once_and_shared(fake_llm: Make) -> None:
    fake = fake_llm()
    params = SamplingParams(n=5, seed=5, max_tokens=1)
    (output,) = fake.llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)
    assert fake.executable.computed == len(PROMPT) + 4, "each other child computes the last token of the prompt"
    assert output.num_cached_tokens == 0, "nothing was there before the request came"
    assert fake.llm.get_metrics()["copied_blocks_total"] == 4, "the block they write into is copied for each"
    (output,) = fake.llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)
    assert output.num_cached_tokens == len(PROMPT) - 1


def test_pieces_of_all_answers_join_to_them(fake_llm: Make) -> None:
    fake = fake_llm(budget=9)
    params = SamplingParams(n=3, seed=5, max_tokens=6, logprobs=1)
    pieces = list(fake.llm.stream({"prompt_token_ids": PROMPT}, params))
    output = pieces[-1].output
    assert output is not None and [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for index, answer in enumerate(output.outputs):
        mine = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in mine) == answer.text
        assert [token for piece in mine for token in piece.token_ids] == answer.token_ids
        assert [one for piece in mine for one in piece.logprobs or ()] == answer.logprobs
        assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + ["length"]
    assert children(output) == [expected(PROMPT, 5, 6, child) for child in range(3)]


def test_a_stop_string_ends_its_own_answer_alone(fake_llm: Make) -> None:
    fake = fake_llm()
    seed = next(
        seed
        for seed in range(10**6)
        if all(32 < token < 127 for token in expected(PROMPT, seed, 4, 1))
        and not set(expected(PROMPT, seed, 4, 1)[2:]) & {*expected(PROMPT, seed, 9, 0), *expected(PROMPT, seed, 9, 2)}
    )
    whole = bytes(expected(PROMPT, seed, 4, 1)).decode()
    params = SamplingParams(n=3, seed=seed, max_tokens=9, stop=whole[2:])
    pieces: list[StreamPiece] = list(fake.llm.stream({"prompt_token_ids": PROMPT}, params))
    output = pieces[-1].output
    assert output is not None
    assert [answer.finish_reason for answer in output.outputs] == ["length", "stop", "length"]
    assert output.outputs[1].text == whole[:2] and output.outputs[1].stop_reason == whole[2:]
    assert children(output) == [expected(PROMPT, seed, count, child) for child, count in enumerate((9, 4, 9))]
    (last,) = [piece for piece in pieces if piece.index == 1 and piece.finish_reason]
    assert (last.finish_reason, last.stop_reason, last.output) == ("stop", whole[2:], None)
    assert fake.llm.get_metrics()["finished_stop"] == 1 and fake.held == 0


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_closing_a_stream_ends_all_answers(fake_llm: Make, steps: int) -> None:
    fake = fake_llm(rows=2)
    stream = fake.llm.stream({"prompt_token_ids": PROMPT}, SamplingParams(n=4, seed=5, max_tokens=9))
    for _ in range(steps):
        next(stream)
    assert fake.held > 0
    stream.close()  # type: ignore[attr-defined]
    assert fake.held == 0 and fake.session.engine.scheduler.num_waiting == 0
    assert fake.llm.get_metrics()["finished_abort"] == 4


def test_ids_in_use_are_refused_and_nothing_stays(fake_llm: Make) -> None:
    fake = fake_llm()
    maker = fake.llm._parts.requests
    first = maker.make("hi", SamplingParams(n=2, seed=1), request_id="mine")
    (answer,) = fake.session.start([first])
    for name in ("mine", "mine/1"):
        with pytest.raises(RequestError, match=f"Request id '{name}' is in use"):
            fake.session.start([maker.make("ho", SamplingParams(seed=1), request_id=name)])
    while fake.session.unfinished([answer]):
        pass
    assert children(answer.output()) == [expected(list(b"hi"), 1, 16, child) for child in range(2)]


# ---- scored prompts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{}, {"budget": 1}, {"budget": 7}, {"budget": 5, "blocks": 17}], ids=str)
def test_prompts_are_scored_in_any_chunks(fake_llm: Make, sizes: dict[str, int]) -> None:
    fake = fake_llm(**sizes)
    fake.llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(seed=3, max_tokens=2), use_tqdm=False)
    params = SamplingParams(seed=5, max_tokens=12, prompt_logprobs=2, n=2)
    outputs = fake.llm.generate([{"prompt_token_ids": PROMPT}] * 2, params, use_tqdm=False)
    for output in outputs:
        scores = output.prompt_logprobs
        assert scores is not None and len(scores) == len(PROMPT) and scores[0] is None
        for place, (token, found) in enumerate(zip(PROMPT[1:], scores[1:], strict=True), 1):
            wanted = score(PROMPT[:place], token)
            assert found is not None and list(found) == [token, token + 1]
            assert found[token] == Logprob(wanted, token % 3 + 1, chr(token))
        assert children(output) == [expected(PROMPT, 5, 12, child) for child in range(2)]
        assert output.num_cached_tokens == 0, "what is not computed has no scores"
    preempted = fake.llm.get_metrics().get("preemptions", 0)
    assert (preempted > 0) == ("blocks" in sizes)


def test_a_single_token_has_no_score_and_nobody_else_gets_any(fake_llm: Make) -> None:
    llm = fake_llm().llm
    one, other = llm.generate(["h", "hi"], [SamplingParams(prompt_logprobs=0), SamplingParams()], use_tqdm=False)
    assert one.prompt_logprobs == [None] and other.prompt_logprobs is None
    (output,) = llm.generate("hi", SamplingParams(prompt_logprobs=0, detokenize=False), use_tqdm=False)
    assert output.prompt_logprobs is not None and [len(place or {}) for place in output.prompt_logprobs] == [0, 1]


def test_max_tokens_0_computes_the_prompt_alone(fake_llm: Make) -> None:
    fake = fake_llm(budget=7)
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, logprobs=0, seed=1, n=2)
    pieces = list(fake.llm.stream({"prompt_token_ids": PROMPT}, params))
    assert [(piece.index, piece.text, piece.token_ids, piece.finish_reason) for piece in pieces] == [
        (0, "", (), "length"),
        (1, "", (), "length"),
    ]
    output = pieces[-1].output
    assert output is not None and output.prompt_logprobs is not None
    assert [next(iter((place or {0: Logprob(0)}).values())).logprob for place in output.prompt_logprobs[1:]] == [
        score(PROMPT[:place], PROMPT[place]) for place in range(1, len(PROMPT))
    ]
    assert children(output) == [[], []] and output.outputs[0].logprobs == [] and output.metrics.first_token is None
    assert fake.held == 0


# ---- shared prefixes -------------------------------------------------------------------------------------------------


def test_a_prefix_is_found_by_its_tokens_and_salt(fake_llm: Make) -> None:
    fake = fake_llm()
    params = SamplingParams(seed=1, max_tokens=3)

    def cached(prompt: list[int], **options: str) -> int:
        (output,) = fake.llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False, **options)  # type: ignore[arg-type]
        assert children(output) == [expected(prompt, 1, 3)]
        return output.num_cached_tokens

    assert [cached(PROMPT), cached(PROMPT), cached(PROMPT[:10]), cached([*PROMPT[:9], 0, 0, 0])] == [0, 25, 9, 9]
    assert [cached(PROMPT, cache_salt="a"), cached(PROMPT, cache_salt="a"), cached(PROMPT, cache_salt="b")] == [
        0,
        25,
        0,
    ]
    (output,) = fake.llm.generate({"prompt_token_ids": PROMPT, "cache_salt": "a"}, params, use_tqdm=False)
    assert output.num_cached_tokens == 25
    longer = [*PROMPT, *expected(PROMPT, 1, 3)]
    assert cached(longer) == 28, "answers are kept like prompts, but for the last token drawn"
    assert fake.llm.reset_prefix_cache() and cached(PROMPT) == 0 and fake.held == 0
    metrics = fake.llm.get_metrics()
    assert metrics["prefix_hits_total"] == 25 + 9 + 9 + 25 + 25 + 28
    assert fake_llm(prefixes=False).llm.reset_prefix_cache()


def test_a_prefix_being_computed_is_shared(fake_llm: Make) -> None:
    fake = fake_llm()
    outputs = fake.llm.generate([{"prompt_token_ids": [*PROMPT, n]} for n in range(4)], use_tqdm=False)
    assert [output.num_cached_tokens for output in outputs] == [0, 24, 24, 24]
    for number, output in enumerate(outputs):
        assert children(output) == [expected([*PROMPT, number], output.seed, 3)]
    assert fake.llm.get_metrics()["prefix_inflight_total"] > 0


# ---- oversubscription ------------------------------------------------------------------------------------------------


def test_a_hundred_requests_in_a_tenth_of_the_memory() -> None:
    def run_all(blocks: int) -> tuple[dict[str, list[int]], list[Event]]:
        engine, _, _ = make_engine(rows=16, blocks=blocks, budget=32)
        for number in range(100):
            prompt = [*PROMPT[: number % 5 * 5], number, *range(number % 7)]
            add(engine, f"q{number}", prompt, 24, seed=number, n=1 + number % 3)
        events = run(engine)
        assert held(engine) == 0 and set(reasons(events).values()) == {"length"}
        return answers(events), events

    many, _ = run_all(4000)
    assert len(many) == 33 * 6 + 1
    few, events = run_all(20)
    assert few == many
    assert any(isinstance(event, RequestPreempted) for event in events)
    for number in (0, 1, 5, 99):
        prompt = [*PROMPT[: number % 5 * 5], number, *range(number % 7)]
        assert many[f"q{number}"] == expected(prompt, number, 24)


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_who_read_bad_blocks_of_another_is_computed_again_alone() -> None:
    engine, executable, _ = make_engine()
    add(engine, "first", PROMPT, 3)
    assert answers(run(engine)) == {"first": expected(PROMPT, 1, 3)}
    executable.damaged.add(1)
    add(engine, "reader", PROMPT, 5, seed=2)
    add(engine, "stranger", [9, *PROMPT], 5, seed=2)
    events = run(engine)
    assert answers(events) == {"reader": expected(PROMPT, 2, 5), "stranger": expected([9, *PROMPT], 2, 5)}
    mine = [type(event) for event in events if event.request_id == "reader"]
    assert mine[:3] == [RequestScheduled, RequestPreempted, RequestScheduled] and RequestPreempted not in mine[3:]
    add(engine, "later", PROMPT, 5, seed=3)
    events = run(engine)
    assert answers(events) == {"later": expected(PROMPT, 3, 5)}
    assert not [event for event in events if isinstance(event, RequestPreempted)], "what was bad is found no more"
    while executable.damaged:  # it is scrubbed before it is used again
        add(engine, "filler", [*range(len(executable.damaged), 190)], 5)
        run(engine)


def test_who_made_the_bad_blocks_ends_and_others_go_on() -> None:
    engine, _, _ = make_engine(budget=16)
    add(engine, "bad", [*PROMPT[:8], POISON, *PROMPT[8:]], 5)
    add(engine, "good", PROMPT, 5)
    events = run(engine)
    assert reasons(events) == {"bad": "error", "good": "length"} and answers(events) == {"good": expected(PROMPT, 1, 5)}
    add(engine, "again", [*PROMPT[:8], POISON, *PROMPT[8:]], 5, n=2)
    events = run(engine)
    assert set(reasons(events).values()) == {"error"} and held(engine) == 0


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_figures_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executable, _ = make_engine(budget=20)
    plans: list[StepPlan] = []
    compute, plan = executable.run, engine.scheduler.plan
    monkeypatch.setattr(executable, "run", lambda inputs: (engine.clock.advance(0.5), compute(inputs))[1])  # type: ignore[attr-defined]
    monkeypatch.setattr(engine.scheduler, "plan", lambda now: (engine.clock.advance(0.25), plan(now))[1])  # type: ignore[attr-defined]
    engine.on_plan = plans.append
    assert engine.stats.steps_total == 0 and engine.last_plan is None
    add(engine, "one", PROMPT, 2)
    add(engine, "two", [1, 2], 9)
    engine.step()
    stats = engine.stats
    assert (stats.steps_total, stats.step_tokens, stats.step_sequences, stats.running) == (1, 20, 1, 1)
    assert (stats.step_seconds, stats.schedule_seconds) == (0.75, 0.25)
    assert plans == [engine.last_plan]
    engine.step()
    stats = engine.stats
    assert (stats.step_tokens, stats.step_sequences, stats.computed_tokens_total) == (8, 2, 28)
    assert stats.kv_usage == 8 / 200 and 0 < stats.kv_waste < 1
    executable.broken = True
    with pytest.raises(RuntimeError):
        engine.step()
    assert len(plans) == 3 and engine.last_plan is plans[-1], "a plan is told before it is run"
    engine.step()
    stats = engine.stats
    assert (stats.steps_total, stats.running, stats.step_tokens, stats.step_seconds) == (2, 0, 0, 0.0)
    assert engine.last_plan is None and len(plans) == 3


def test_metrics_have_counters_and_figures(fake_llm: Make) -> None:
    fake = fake_llm()
    fake.llm.generate(["hi", "ho"], SamplingParams(max_tokens=3), use_tqdm=False)
    metrics = fake.llm.get_metrics()
    assert (metrics["generated_tokens"], metrics["finished_length"], metrics["steps_total"]) == (6, 2, 3)
    assert metrics["kv_usage"] == 0 and metrics["kv_blocks"] == 200 and metrics["computed_tokens_total"] == 2 * 2 + 4


def test_events_in_order_of_a_scored_request() -> None:
    engine, _, _ = make_engine(budget=10)
    add(engine, "one", PROMPT, 2, prompt_logprobs=0)
    kinds = [type(event) for event in run(engine)]
    wanted = [RequestScheduled, *[PromptScored] * 3, *[TokensGenerated] * 2, RequestFinished]
    assert kinds == wanted


def test_the_fake_depends_on_the_child() -> None:
    """Else the comparisons above would compare little."""
    assert len({draw(PROMPT, 1, 0, child) for child in range(20)}) > 15 and BLOCK == 4
