"""Answers on their way: clients that leave in each phase, engines that fail, silence, slow readers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.serve.fakes import SAYS, Connection, FakeEngine, events_of, make_app

from pelton.core.errors import EngineDeadError, OverloadedError
from pelton.serve.streaming import KEEP_ALIVE

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SLOW = 0.005


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


@asynccontextmanager
async def asked(engine: FakeEngine, path: str, body: dict[str, Any], **settings: Any) -> AsyncGenerator[Connection]:
    """A connection whose request is being answered; its end is waited for."""
    connection = Connection(make_app(engine, **settings), path, body)
    task = asyncio.create_task(connection.run())
    try:
        yield connection
        await asyncio.wait_for(task, 5)
    finally:
        task.cancel()


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    start: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {**start, "max_tokens": 100, **fields}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "answering"])
def test_a_client_that_leaves_takes_its_request_along(path: str, stream: bool, phase: str) -> None:
    async def test() -> None:
        engine = FakeEngine(delay=SLOW if phase == "answering" else 60)
        async with asked(engine, path, body_of(path, stream=stream, n=2)) as connection:
            if phase == "answering" and stream:
                await connection.next()
                await connection.next()
            else:
                await asyncio.sleep(10 * SLOW)
            assert engine.open == 1
            connection.leave()
        assert engine.open == 0
        assert engine.aborted == [engine.submitted[0].request_id]

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_whole_batch_along(stream: bool) -> None:
    async def test() -> None:
        engine = FakeEngine(delay=SLOW)
        async with asked(engine, COMPLETIONS, {"prompt": ["a", "b", "c"], "max_tokens": 100, "stream": stream}) as gone:
            if stream:
                await gone.next()
            await asyncio.sleep(5 * SLOW)
            assert engine.open == 3
            gone.leave()
        assert engine.open == 0
        assert len(engine.aborted) == 3

    run(test())


def test_a_client_that_leaves_while_it_sends_reaches_no_engine() -> None:
    async def test() -> None:
        engine = FakeEngine()
        connection = Connection(make_app(engine), CHAT, body_of(CHAT), chunks=3)
        connection._parts.pop()
        connection.leave()
        await connection.run()
        assert engine.submitted == []

    run(test())


def test_a_client_that_leaves_after_the_end_is_no_abort() -> None:
    async def test() -> None:
        engine = FakeEngine()
        app = make_app(engine)
        connection = Connection(app, CHAT, body_of(CHAT, stream=True, max_tokens=3))
        await connection.run()
        connection.leave()
        assert engine.aborted == []

    run(test())


def test_silence_is_broken_by_comments() -> None:
    async def test() -> None:
        engine = FakeEngine(delay=0.1)
        body = body_of(CHAT, stream=True, max_tokens=2)
        async with asked(engine, CHAT, body, sse_keep_alive_interval=0.03) as connection:
            messages = [message async for message in connection.messages()]
        assert messages[0]["type"] == "http.response.start"
        bodies = [message["body"] for message in messages[1:]]
        assert bodies[:2] == [KEEP_ALIVE, KEEP_ALIVE]
        assert KEEP_ALIVE.startswith(b":")
        events = events_of(b"".join(bodies).decode())
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == SAYS[:2]

    run(test())


def test_there_are_no_comments_where_they_are_off() -> None:
    async def test() -> None:
        engine = FakeEngine(delay=0.05)
        body = body_of(CHAT, stream=True, max_tokens=2)
        async with asked(engine, CHAT, body, sse_keep_alive_interval=0) as connection:
            messages = [message async for message in connection.messages()]
        assert KEEP_ALIVE not in [message.get("body") for message in messages]

    run(test())


def test_the_pieces_of_a_slow_reader_grow_together() -> None:
    async def test() -> None:
        engine = FakeEngine()
        connection = Connection(make_app(engine), COMPLETIONS, body_of(COMPLETIONS, stream=True))
        connection.pause = asyncio.Event()
        task = asyncio.create_task(connection.run())
        while not engine.submitted or engine.open:
            await asyncio.sleep(0.01)
        connection.pause.set()
        await task
        messages = [message async for message in connection.messages()]
        events = events_of(b"".join(message.get("body", b"") for message in messages).decode())
        assert len(events) <= 3
        assert "".join(event["choices"][0]["text"] for event in events) == (SAYS * 10).encode()[:100].decode(
            "utf-8", "replace"
        )

    run(test())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fault", "state", "status", "code"),
    [
        ("error", "running", 500, "answer_failed"),
        ("error", "restarting", 503, "engine_unavailable"),
        ("abort", "stopped", 503, "shutting_down"),
    ],
)
def test_a_failing_engine_is_told(path: str, fault: str, state: str, status: int, code: str) -> None:
    async def test() -> None:
        for stream, count in ((False, 5), (True, 0), (True, 5)):
            engine = FakeEngine(delay=SLOW, fault=(fault, count))
            async with asked(engine, path, body_of(path, stream=stream)) as connection:
                while not engine.submitted:
                    await asyncio.sleep(0)
                engine.state = state
                messages = [message async for message in connection.messages()]
            text = b"".join(message.get("body", b"") for message in messages).decode()
            assert messages[0]["status"] == (200 if stream and count else status)
            error = events_of(text)[-1]["error"] if stream and count else json.loads(text)["error"]
            assert error["code"] == code
            assert error["message"]
            assert engine.open == 0

    run(test())


def test_one_failing_answer_of_a_batch_ends_the_others() -> None:
    async def test() -> None:
        engine = FakeEngine(refuse=(OverloadedError("Too many wait.", retry_after=7), 2))
        body = {"prompt": ["a", "b", "c"], "stream": True}
        async with asked(engine, COMPLETIONS, body) as connection:
            messages = [message async for message in connection.messages()]
        assert messages[0]["status"] == 503
        headers = dict(messages[0]["headers"])
        assert headers[b"retry-after"] == b"7"
        assert json.loads(messages[1]["body"])["error"]["type"] == "overloaded"
        assert engine.open == 0
        assert len(engine.aborted) == 2

    run(test())


def test_a_dead_engine_is_a_503() -> None:
    async def test() -> None:
        engine = FakeEngine(refuse=(EngineDeadError("It is gone.", "Wait."), 0))
        async with asked(engine, CHAT, body_of(CHAT, stream=True)) as connection:
            messages = [message async for message in connection.messages()]
        assert messages[0]["status"] == 503
        assert int(dict(messages[0]["headers"])[b"retry-after"]) >= 1

    run(test())


def test_one_chunk_for_each_step() -> None:
    async def test() -> None:
        engine = FakeEngine(delay=SLOW)
        async with asked(engine, COMPLETIONS, body_of(COMPLETIONS, stream=True, max_tokens=10)) as connection:
            messages = [message async for message in connection.messages()]
        # The start, a chunk per token, one for the end, and [DONE].
        assert 12 <= len(messages) <= 13

    run(test())


def test_a_long_body_is_read_while_others_stream() -> None:
    async def test() -> None:
        engine = FakeEngine(max_len=1 << 22)
        app = make_app(engine)
        ticks = []
        over = asyncio.Event()

        async def tick() -> None:
            while not over.is_set():
                ticks.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.002)

        ticking = asyncio.create_task(tick())
        connection = Connection(app, COMPLETIONS, {"prompt": "all work and no play " * 40_000, "max_tokens": 1})
        began = asyncio.get_running_loop().time()
        await connection.run()
        took = asyncio.get_running_loop().time() - began
        over.set()
        await ticking
        longest = max(later - sooner for sooner, later in zip(ticks, ticks[1:], strict=False))
        assert len(engine.submitted[0].prompt_token_ids) == 840_000
        assert longest < max(0.5 * took, 0.2)

    run(test())
