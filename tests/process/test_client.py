"""AsyncEngine over a real engine process: answers, aborts in every phase, limits, drains, and equality with LLM."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest
from tests.process.engines import SLOW, Notes, Settings, ask, free, settled, with_engine

from pelton.core.config import EngineConfig
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError, OverloadedError, RequestError
from pelton.core.events import Event
from pelton.core.params import SamplingParams
from pelton.core.plan import Lookup
from pelton.core.request import Request
from pelton.engine.front import Front, build_front
from pelton.engine.llm import LLM
from pelton.engine.load.deadlines import LATE
from pelton.engine.process import client
from pelton.engine.process.answer import AsyncAnswer
from pelton.engine.process.client import AsyncEngine
from pelton.engine.process.messages import DescribeCache, EndSession
from pelton.engine.process.supervisor import Watch

pytestmark = pytest.mark.dist


def test_an_answer_in_pieces_is_the_whole(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        assert engine.state == "running" and engine.report.kv_blocks == 1001 and engine.limits.max_len == 2048
        answer = ask(engine, "The capital of France is", 600, logprobs=2)
        pieces = [piece async for piece in answer]
        output = await answer.output()
        assert pieces[-1].output == output and output.outputs[0].finish_reason == "length"
        assert "".join(piece.text for piece in pieces) == output.outputs[0].text
        assert [token for piece in pieces for token in piece.token_ids] == output.outputs[0].token_ids
        assert [one for piece in pieces for one in piece.logprobs or []] == output.outputs[0].logprobs
        assert len(pieces) > 3, "the pieces came one by one"
        assert [piece async for piece in answer] == []
        metrics = output.metrics
        assert metrics.first_scheduled is not None and metrics.first_token is not None and metrics.finished is not None
        assert metrics.arrival <= metrics.first_scheduled < metrics.first_token < metrics.finished

    with_engine(settings(), test)


def test_the_process_gives_exactly_what_llm_gives(settings: Settings) -> None:
    config = settings(max_num_seqs=16)
    params = [
        SamplingParams(max_tokens=6 + number % 7, seed=2**64 - 1 - number, temperature=number % 3 / 2, n=1 + number % 2)
        for number in range(32)
    ]
    prompts = [f"Story {number}: once upon a time in the {'deep ' * (number % 5)}sea" for number in range(32)]
    with LLM(config.model.model, max_model_len=2048, num_blocks=1000, max_num_seqs=16, threads=1) as llm:
        alone = [(one.outputs, one.prompt_token_ids) for one in llm.generate(prompts, params, use_tqdm=False)]

    async def test(engine: AsyncEngine) -> None:
        answers = [
            engine.submit(engine.requests.make(prompt, one)) for prompt, one in zip(prompts, params, strict=True)
        ]
        outputs = [await answer.output() for answer in answers]
        assert [(one.outputs, one.prompt_token_ids) for one in outputs] == alone

    with_engine(config, test)


def test_two_hundred_at_once(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        answers = [ask(engine, f"Number {number % 10} is", 4, seed=number % 10) for number in range(200)]
        assert engine.load == 200, "at once, though no step has told of them"

        async def read(answer: AsyncAnswer) -> str:
            return "".join([piece.text async for piece in answer])

        texts = await asyncio.gather(*(read(answer) for answer in answers))
        assert len(set(texts)) == 10 and texts[:10] * 20 == texts and engine.load == 0
        await settled(engine, free)

    with_engine(settings(max_num_seqs=64), test)


@pytest.mark.parametrize("way", ["abort", "aclose", "cancel", "garbage"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_an_abort_frees_all_within_a_step(settings: Settings, phase: str, way: str) -> None:
    notes = Notes()

    async def test(engine: AsyncEngine) -> None:
        engine.observers.append(notes)
        other = ask(engine, "Another one", 1900) if phase == "queued" else None
        if other is not None:
            await anext(other)
        answer = ask(engine, [5 + number % 100 for number in range(200)], 100)
        if phase == "queued":
            await settled(engine, lambda stats: stats.waiting == 1)
        elif phase == "prefill":
            await settled(engine, lambda stats: stats.computed_tokens_total > 32)
            assert answer.answer.metrics.first_token is None
        else:
            await anext(answer)
        name = answer.answer.request.request_id
        before = len(notes.steps)
        if way == "cancel":
            waiting = asyncio.create_task(answer.output())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        elif way == "garbage":
            del answer
        elif way == "aclose":
            await answer.aclose()
            assert [piece async for piece in answer] == []
        else:
            answer.abort()
            assert (await answer.output()).outputs[0].finish_reason == "abort"
        if other is None:
            await settled(engine, free)
        else:
            await settled(engine, lambda stats: stats.waiting == 0)
            assert engine.stats.running == 1
        assert notes.finished[-1].outputs[0].finish_reason == "abort"
        # The step that runs when the message arrives, and the one that tells the end; one to spare for a busy machine.
        assert len(notes.steps) - before <= 3
        assert [event.request_id for event in notes.events].count(name) >= 1

    with_engine(settings(max_num_seqs=1, max_num_batched_tokens=32), test, module=SLOW)


def test_a_deadline_ends_who_waits_and_who_runs_and_nobody_else(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        def timed(name: str, seconds: float, tokens: int) -> AsyncAnswer:
            request = engine.requests.make(name, SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True))
            return engine.submit(replace(request, deadline=request.arrival + seconds, owner="\udfff"))

        running, queued = timed("One", 0.8, 1900), timed("Two", 0.4, 5)
        outputs = await asyncio.gather(running.output(), queued.output())
        assert [one.error_code for one in outputs] == [LATE, LATE]
        assert outputs[0].outputs[0].token_ids and not outputs[1].outputs[0].token_ids
        assert outputs[1].metrics.first_scheduled is None
        await settled(engine, free)
        assert (await timed("Three", 600.0, 5).output()).outputs[0].finish_reason == "length"

    with_engine(settings(max_num_seqs=1), test, module=SLOW)


def test_a_reader_that_gives_up_waiting_may_go_on(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        first = ask(engine, "One", 1900)
        queued = ask(engine, "The capital of France is", 5)
        await anext(first)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(queued), 0.01)
        first.abort()
        assert sum([len(piece.token_ids) async for piece in queued]) == 5
        assert (await queued.output()).outputs[0].finish_reason == "length"

    with_engine(settings(max_num_seqs=1), test, module=SLOW)


def test_a_slow_reader_holds_nobody_up_and_misses_nothing(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        slow, fast = ask(engine, "Tell me", 40, n=2), ask(engine, "Tell me", 40)
        assert len([piece async for piece in fast]) > 3
        await slow.output()
        pieces = [piece async for piece in slow]
        assert [len(piece.token_ids) for piece in pieces] == [40, 40] and [piece.index for piece in pieces] == [0, 1]
        assert [piece.output is None for piece in pieces] == [True, False]

    with_engine(settings(), test, module=SLOW)


def test_a_stop_string_ends_the_sequence_in_the_engine_too(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        text = (await ask(engine, "Count: 1, 2, 3,", 60).output()).outputs[0].text
        stop = text[20:24]
        answer = ask(engine, "Count: 1, 2, 3,", 1900, stop=stop)
        output = await answer.output()
        assert output.outputs[0].text == text[: text.index(stop)] and output.outputs[0].stop_reason == stop
        stats = await settled(engine, free)
        assert stats.steps_total < 60 + 500

    with_engine(settings(), test, module=SLOW)


def test_the_queue_limit(settings: Settings) -> None:
    notes = Notes()

    async def test(engine: AsyncEngine) -> None:
        engine.observers.append(notes)
        answers = [ask(engine, "Hello", 30) for _ in range(5)]
        with pytest.raises(OverloadedError, match="max_num_queued_reqs is 3") as raised:
            ask(engine, "Hello")
        assert raised.value.retry_after >= 1 and notes.rejected == ["max_num_queued_reqs"]
        await anext(answers[0])
        with pytest.raises(OverloadedError):
            ask(engine, "Hello")
        outputs = [await answer.output() for answer in answers]
        assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
        await ask(engine, "Hello").output()

    with_engine(settings(max_num_seqs=2, max_num_queued_reqs=3), test, module=SLOW)


def test_ids_in_use_and_requests_that_cannot_be_sent(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=900, seed=1, ignore_eos=True)
        answer = engine.submit(engine.requests.make("Hello", params, request_id="mine"))
        with pytest.raises(RequestError, match="in use"):
            engine.submit(engine.requests.make("Hello", params, request_id="mine"))
        answer.abort()
        again = engine.submit(engine.requests.make("Hello", params, request_id="mine"))
        bad = Request("\ud800", (1,), params, frozenset(), 3, 0.0)
        with pytest.raises(RequestError, match="cannot be sent"):
            engine.submit(bad)
        assert len((await again.output()).outputs[0].token_ids) > 1

    with_engine(settings(), test)


def test_a_request_that_the_engine_refuses(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        long = Request("1", (7,) * 5000, SamplingParams(seed=1), frozenset(), 9, 0.0)
        other = ask(engine, "Hello", 20)
        answer = engine.submit(long)
        for wait in (answer.output(), anext(answer)):
            with pytest.raises(RequestError) as raised:
                await wait
            assert raised.value.code == "context_length_exceeded"
        assert (await other.output()).outputs[0].finish_reason == "length"

    with_engine(settings(), test)


def test_children_and_readers_of_a_prompt_in_the_making_fill_no_queue(settings: Settings) -> None:
    """A prompt of twelve slow steps: its children and those that begin alike wait for it while rows are free."""

    async def test(engine: AsyncEngine) -> None:
        prompt = [9 + number % 50 for number in range(12 * 32)]
        answers = [ask(engine, prompt, 40, n=3), ask(engine, [*prompt, 10], 40)]
        stats = await settled(engine, lambda stats: stats.deferred == 3)
        assert (stats.running, stats.waiting) == (1, 3)
        answers += [ask(engine, f"Hello {place}", 40) for place in range(3)]
        assert {output.error for output in [await answer.output() for answer in answers]} == {None}

    with_engine(
        settings(max_num_seqs=8, max_num_queued_reqs=1, max_num_batched_tokens=48, long_prefill_token_threshold=32),
        test,
        module=SLOW,
    )


@pytest.mark.parametrize("kind", ["n", "prompts"])
def test_an_idle_engine_takes_a_call_of_any_size_and_a_busy_one_all_of_it_or_nothing(
    settings: Settings, kind: str
) -> None:
    notes = Notes()

    async def test(engine: AsyncEngine) -> None:
        def call(size: int) -> list[AsyncAnswer]:
            params = SamplingParams(max_tokens=10, seed=3, ignore_eos=True, n=size if kind == "n" else 1)
            count = 1 if kind == "n" else size
            return engine.submit_all([engine.requests.make("Hello", params) for _ in range(count)])

        engine.observers.append(notes)
        answers = call(10)
        with pytest.raises(OverloadedError, match="requests wait already"):
            call(10)
        await settled(engine, lambda stats: stats.running == 2)
        with pytest.raises(OverloadedError):
            call(2)
        outputs = [await answer.output() for answer in answers]
        assert sum(len(output.outputs) for output in outputs) == 10 and {output.error for output in outputs} == {None}
        assert len(notes.finished) == len(answers) and notes.rejected == ["max_num_queued_reqs"] * 2
        assert free(await settled(engine, free)) and await call(10)[0].output()

    with_engine(settings(max_num_seqs=2, max_num_queued_reqs=1), test, module=SLOW)


def test_it_is_starting_until_both_processes_are_ready(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        engine = AsyncEngine(settings())
        gate = threading.Event()

        def late(config: EngineConfig) -> Front:
            gate.wait(60)
            return build_front(config)

        monkeypatch.setattr(client, "build_front", late)
        start = asyncio.create_task(engine.start())
        try:
            while engine._supervisor.state != "running":
                await asyncio.sleep(0.01)
            assert engine.state == "starting" and not await engine.reset_prefix_cache()
            gate.set()
            await start
            assert engine.state == "running" and engine.front is not None
        finally:
            gate.set()
            await engine.close()
        assert engine.state == "stopped"

    asyncio.run(test())


def test_the_prefix_cache_is_used_and_reset(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        prompt = [9 + number % 50 for number in range(100)]
        first = await ask(engine, prompt).output()
        second = await ask(engine, prompt).output()
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 99) and engine.stats.cached_blocks > 0
        assert first.outputs == second.outputs
        assert await engine.reset_prefix_cache() and engine.stats.cached_blocks == 0
        assert (await ask(engine, prompt).output()).num_cached_tokens == 0

    with_engine(settings(), test)


def test_questions_reach_the_engine_and_its_sessions(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=4, seed=3, ignore_eos=True)
        prompt = {"prompt_token_ids": [9 + number % 50 for number in range(100)]}
        request = engine.requests.make(prompt, params, session_id="s")
        output = await engine.submit(request).output()
        assert output.prefix_lookup == Lookup("unseen")
        shape = json.loads(await engine.ask(DescribeCache(10)) or b"")
        assert shape["sessions"]["open"] == 1 and shape["groups"][0]["held"] == 4 == engine.stats.session_blocks
        assert (
            int(await engine.ask(EndSession(("", "s"))) or b"") >= 99 and await engine.ask(EndSession(("", "s"))) == b""
        )
        assert engine.stats.sessions == engine.stats.held_blocks == 0

    with_engine(settings(), test)


def test_observers_hear_all_and_one_that_fails_harms_nobody(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()

    class Broken(Notes):
        def on_step(self, stats: EngineStats, events: tuple[Event, ...]) -> None:
            raise ZeroDivisionError("an observer's bug")

    async def test(engine: AsyncEngine) -> None:
        engine.observers += [Broken(), notes]
        output = await ask(engine, "Hello", 5, n=2).output()
        assert notes.finished == [output] and len(notes.steps) >= 3
        assert sum(stats.step_tokens for stats in notes.steps) == engine.stats.computed_tokens_total

    with_engine(settings(), test)
    assert "an observer's bug" in caplog.text


@pytest.mark.parametrize("seconds", [0.0, 20.0])
def test_a_drain_waits_then_aborts(settings: Settings, seconds: float) -> None:
    async def test(engine: AsyncEngine) -> None:
        answers = [ask(engine, "Hello", count) for count in (100, 1900)]
        await anext(answers[0])
        if seconds:
            answers.pop().abort()
        draining = asyncio.create_task(engine.drain(seconds))
        await asyncio.sleep(0)
        with pytest.raises(EngineDeadError, match="No more requests"):
            ask(engine, "Hello")
        await draining
        for answer in answers:
            last = [piece async for piece in answer][-1]
            assert last.output is not None and last.finish_reason == ("length" if seconds else "abort")
        assert free(engine.stats)

    with_engine(settings(), test, module=SLOW)


def test_closing_ends_what_is_open(settings: Settings) -> None:
    async def run() -> None:
        engine = AsyncEngine(settings(), module=SLOW)
        await engine.start()
        answer = ask(engine, "Hello", 1900)
        await anext(answer)
        await engine.close()
        assert (await answer.output()).outputs[0].finish_reason == "abort"
        with pytest.raises(EngineDeadError):
            ask(engine, "Hello")
        await engine.close()

    asyncio.run(run())


def test_before_the_start_nothing_is_taken(settings: Settings) -> None:
    async def run() -> None:
        engine = AsyncEngine(settings(), watch=Watch())
        assert engine.state == "starting" and engine.stats == EngineStats() and not await engine.reset_prefix_cache()
        with pytest.raises(EngineDeadError, match="starting"):
            engine.submit(Request("1", (1,), SamplingParams(seed=1), frozenset(), 1, 0.0))
        await engine.drain(1.0)
        await engine.close()

    asyncio.run(run())
