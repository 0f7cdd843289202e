"""Answers on their way: clients that leave in each phase, engines that fail, silence, slow readers."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.serve.fakes import SAYS, Connection, FakeEngine, events_of, make_app

from pelton.core.errors import EngineDeadError, OverloadedError
from pelton.serve.service import LONG_BODY, SHORT_BODY
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
        ("error", "draining", 503, "shutting_down"),
        ("error by the request itself", "running", 400, "no_token_left"),
        ("error by the request itself", "restarting", 400, "no_token_left"),
    ],
)
def test_a_failing_engine_is_told(path: str, fault: str, state: str, status: int, code: str) -> None:
    async def test() -> None:
        for stream, count in ((False, 5), (True, 0), (True, 5)):
            own = code if "itself" in fault else None
            engine = FakeEngine(delay=SLOW, fault=(fault.split()[0], count), fault_code=own)
            async with asked(engine, path, body_of(path, stream=stream)) as connection:
                while not engine.submitted:
                    await asyncio.sleep(0)
                engine.state, engine.draining = state, state == "draining"
                messages = [message async for message in connection.messages()]
            text = b"".join(message.get("body", b"") for message in messages).decode()
            assert messages[0]["status"] == (200 if stream and count else status)
            error = events_of(text)[-1]["error"] if stream and count else json.loads(text)["error"]
            assert error["code"] == code
            assert error["message"].lower().count("again") <= 1
            assert engine.open == 0

    run(test())


def test_a_batch_that_is_not_taken_leaves_nothing_in_the_engine() -> None:
    async def test() -> None:
        engine = FakeEngine(refuse=(OverloadedError("Too many wait.", retry_after=7), 2))
        body = {"prompt": ["a", "b", "c"], "stream": True}
        async with asked(engine, COMPLETIONS, body) as connection:
            messages = [message async for message in connection.messages()]
        assert messages[0]["status"] == 503
        headers = dict(messages[0]["headers"])
        assert headers[b"retry-after"] == b"7"
        assert json.loads(messages[1]["body"])["error"]["type"] == "overloaded"
        assert engine.submitted == []

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


@pytest.mark.parametrize("body", [b"short", b"x" * SHORT_BODY])
@pytest.mark.parametrize("slow", [b"x" * LONG_BODY, b'{"chat_template": "endless"}'])
def test_a_shorter_body_never_waits_for_slow_ones(slow: bytes, body: bytes) -> None:
    async def test() -> None:
        service = make_app().state.service
        go_on, in_work = threading.Event(), []

        def make(raw: bytes) -> int:
            if raw == slow:
                in_work.append(raw)
                go_on.wait(10)
            return len(raw)

        others = [asyncio.create_task(service.prepare(make, slow)) for _ in range(40)]
        try:
            await asyncio.sleep(0.02)
            assert await asyncio.wait_for(service.prepare(make, body), 1) == len(body)
            assert len(in_work) == 1 and not any(other.done() for other in others)
        finally:
            go_on.set()
        assert await asyncio.gather(*others) == [len(slow)] * 40

    run(test())


def test_only_short_bodies_are_read_where_streams_are_written() -> None:
    async def test() -> None:
        prepare = make_app().state.service.prepare
        here = threading.get_ident()
        assert await prepare(lambda _: threading.get_ident(), b"x" * (SHORT_BODY - 1)) == here
        assert await prepare(lambda _: threading.get_ident(), b"x" * SHORT_BODY) != here

    run(test())


def test_a_template_that_never_ends_holds_up_no_long_body() -> None:
    async def test() -> None:
        service = make_app().state.service
        go_on = threading.Event()
        endless = asyncio.create_task(service.prepare(lambda _: go_on.wait(10), b'{"chat_template": "endless"}'))
        try:
            assert await asyncio.wait_for(service.prepare(len, b"x" * LONG_BODY), 5) == LONG_BODY
        finally:
            go_on.set()
        assert await endless

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
