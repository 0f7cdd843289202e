"""Real clients against a real server process: the openai package, curl, many streams, clients that leave."""

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import requests
from tests.serve.process import ServerProcess
from tests.serve.test_bad_input import CASES, RAW, SURROGATES

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]
QUESTION = [{"role": "user", "content": "Say hello in one sentence."}]


FLAGS = ("--served-model-name", "tiny", "--disable-access-log", "--max-model-len", "1024", "--max-num-seqs", "64")


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("serve"), str(smollm2), *FLAGS) as running:
        yield running
        assert "Traceback" not in running.told
        assert running.end() == 0


def post(server: ServerProcess, path: str, **fields: Any) -> Any:
    reply = requests.post(server.url + path, json=fields, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def in_the_engine(server: ServerProcess) -> int:
    load: int = requests.get(server.url + "/load", timeout=10).json()["server_load"]
    return load


def wait_until(good: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_openai_client(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        given: Any = {"model": "tiny", "messages": QUESTION, "max_tokens": 12, "temperature": 0}
        whole = client.chat.completions.create(**given, logprobs=True, top_logprobs=2)
        text = whole.choices[0].message.content
        assert text
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert "".join(entry.token for entry in logprobs.content) == text
        assert all(entry.logprob == max(top.logprob for top in entry.top_logprobs) for entry in logprobs.content)
        chunks = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        assert chunks[-1].usage is not None
        # The first answer's whole blocks of the prompt are there already.
        assert chunks[-1].usage.prompt_tokens_details is not None
        assert (chunks[-1].usage.prompt_tokens_details.cached_tokens or 0) > 0
        completion = client.completions.create(
            model="tiny", prompt="The capital of France is", max_tokens=4, n=2, seed=1
        )
        assert len(completion.choices) == 2
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(**{**given, "model": "other"})
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as too_long:
            client.completions.create(model="tiny", prompt="word " * 3000)
        assert too_long.value.code == "context_length_exceeded"


def test_the_asynchronous_openai_client(server: ServerProcess) -> None:
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
            given: Any = {"model": "tiny", "messages": QUESTION, "max_tokens": 12, "seed": 3}
            whole, stream = await asyncio.gather(
                client.chat.completions.create(**given), client.chat.completions.create(**given, stream=True)
            )
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content or "", "".join(parts)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed != ""


def test_curl(server: ServerProcess) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    body = json.dumps({"prompt": "One two three", "max_tokens": 3, "stream": True, "temperature": 0})
    command = [curl, "-sN", "-i", server.url + "/v1/completions", "-H", "X-Request-Id: from-curl", "-d", body]
    told = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout.decode()
    head, _, events = told.partition("\r\n\r\n")
    assert "200 OK" in head
    assert "x-request-id: from-curl" in head.lower()
    assert "text/event-stream" in head
    assert events.rstrip().endswith("data: [DONE]")


def test_echo_scores_the_prompt_the_same_in_each_way(server: ServerProcess) -> None:
    given: dict[str, Any] = {"prompt": "The capital of France is Paris.", "echo": True, "logprobs": 1}
    whole = post(server, "/v1/completions", **given, max_tokens=0)["choices"][0]
    assert whole["text"] == given["prompt"]
    entries = whole["logprobs"]
    assert entries["token_logprobs"][0] is None
    assert all(value < 0 for value in entries["token_logprobs"][1:])
    for token, place in zip(entries["tokens"], entries["text_offset"], strict=True):
        assert whole["text"][place : place + len(token)] == token
    longer = post(server, "/v1/completions", **given, max_tokens=5)["choices"][0]
    count = len(entries["tokens"])
    assert longer["logprobs"]["token_logprobs"][:count] == entries["token_logprobs"]
    reply = requests.post(server.url + "/v1/completions", json={**given, "max_tokens": 0, "stream": True}, timeout=60)
    first = json.loads(reply.text.split("\n\n")[0][6:])
    assert first["choices"][0]["logprobs"] == entries
    body = {**given, "prompt": [given["prompt"], "One two"], "max_tokens": 2, "n": 3, "stream": True}
    reply = requests.post(server.url + "/v1/completions", json=body, timeout=60)
    firsts: dict[int, Any] = {}
    for block in reply.text.split("\n\n")[:-2]:
        for choice in json.loads(block[6:])["choices"]:
            firsts.setdefault(choice["index"], choice)
    assert sorted(firsts) == list(range(6))
    for index in range(3):
        assert firsts[index]["logprobs"]["token_logprobs"][:count] == entries["token_logprobs"]
    # The same numbers as when the tokens are an answer.
    ids = post(server, "/tokenize", prompt=given["prompt"])["tokens"]
    scores = post(server, "/v1/completions", prompt=ids[:-1], max_tokens=1, logprobs=1, logit_bias={str(ids[-1]): 100})
    assert scores["choices"][0]["logprobs"]["token_logprobs"][0] == entries["token_logprobs"][-1]


def test_bad_input_is_a_4xx_and_the_server_lives(server: ServerProcess) -> None:
    with requests.Session() as session:
        for path, fields, _ in CASES:
            if "x" * 1000 in str(fields):  # fits this server's context
                continue
            reply = session.post(server.url + path, json=fields, timeout=60)
            assert 400 <= reply.status_code < 500, (path, str(fields)[:200], reply.text)
            assert reply.json()["error"]["message"]
        for raw in RAW:
            assert session.post(server.url + "/v1/completions", data=raw, timeout=60).status_code == 400
        for path, text, param in SURROGATES:
            reply = session.post(server.url + path, data=text.encode(), timeout=60)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert server.process.poll() is None
    assert len(post(server, "/v1/completions", prompt="x", max_tokens=1)["choices"]) == 1
    assert in_the_engine(server) == 0


def test_the_engine_process_is_killed_in_the_middle_of_a_stream(server: ServerProcess) -> None:
    given: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
    before = post(server, "/v1/completions", **given, max_tokens=12)["choices"][0]["text"]
    killed = server.engine_pid
    body = {**given, "max_tokens": 900, "stream": True}
    with requests.post(server.url + "/v1/completions", json=body, stream=True, timeout=60) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith(b"data: "))
        text = "".join(json.loads(next(lines)[6:])["choices"][0]["text"] for _ in range(8))
        os.kill(killed, signal.SIGKILL)
        asked = [requests.post(server.url + "/v1/completions", json={**given, "max_tokens": 2}, timeout=60)]
        *pieces, error, done = [line[6:] for line in lines]
    assert text.startswith(before[:8]) and all(b"choices" in piece for piece in pieces)
    assert done == b"[DONE]"
    told = json.loads(error)["error"]
    assert (told["code"], told["type"]) == ("engine_unavailable", "unavailable_error")
    assert "SIGKILL" in told["message"] and told["message"].endswith("again. Send the request again in a few seconds.")
    wait_until(lambda: requests.get(server.url + "/health", timeout=10).status_code == 200, 30)
    asked += [requests.post(server.url + "/v1/completions", json={**given, "max_tokens": 2}, timeout=60)]
    for reply in asked:
        assert reply.status_code == 200 or (reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1)
    assert asked[-1].status_code == 200 and server.engine_pid != killed
    assert post(server, "/v1/completions", **given, max_tokens=12)["choices"][0]["text"] == before
    assert 'pelton:engine_restarts_total{engine="0",model_name="tiny"} 1.0' in server.ask("/metrics")[1]


async def reading(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    """A completion, read to its end."""
    async with session.post(url + "/v1/completions", json=body) as reply:
        await reply.read()


async def left(asking: "list[asyncio.Task[None]]") -> None:
    """They hang up."""
    for task in asking:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prompt", "answer"])
def test_a_client_that_leaves_frees_the_engine(server: ServerProcess, stream: bool, phase: str) -> None:
    prompt = "word " * 900 if phase == "prompt" else "Once upon a time"
    body = {"prompt": prompt, "stream": stream, "max_tokens": 100 if phase == "prompt" else 900, "ignore_eos": True}

    async def leave() -> None:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(reading(session, server.url, body))
            await asyncio.to_thread(wait_until, lambda: in_the_engine(server) == 1, 5)
            await asyncio.sleep(0.3 if phase == "answer" else 0)
            await left([asking])

    wait_until(lambda: in_the_engine(server) == 0, 10)
    asyncio.run(leave())
    wait_until(lambda: in_the_engine(server) == 0, 2)


def test_many_who_wait_and_leave(server: ServerProcess) -> None:
    async def leave() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            body = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}
            asking = [asyncio.create_task(reading(session, server.url, body)) for _ in range(100)]
            await asyncio.to_thread(wait_until, lambda: in_the_engine(server) == 100, 10)
            await left(asking)

    asyncio.run(leave())
    wait_until(lambda: in_the_engine(server) == 0, 3)


def test_a_huge_body_holds_nobody_up(server: ServerProcess) -> None:
    """10 MB of prompt are refused, and tokens of another stream go on coming."""

    async def gaps_of(lines: AsyncIterator[bytes], over: asyncio.Event) -> list[float]:
        times = []
        async for _ in lines:
            times.append(time.monotonic())
            if over.is_set():
                break
        return [later - sooner for sooner, later in zip(times, times[1:], strict=False)]

    async def ask() -> tuple[int, str, list[float]]:
        over = asyncio.Event()
        body = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}
        async with aiohttp.ClientSession() as session:
            async with session.post(server.url + "/v1/completions", json=body) as stream:
                gaps = asyncio.create_task(gaps_of(stream.content.__aiter__(), over))
                huge = io.BytesIO(json.dumps({"prompt": "all work and no play " * 500_000}).encode())
                async with session.post(server.url + "/v1/completions", data=huge) as reply:
                    status, text = reply.status, await reply.text()
                over.set()
                return status, text, await gaps

    status, text, gaps = asyncio.run(ask())
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")
    assert max(gaps) < 1.5
    wait_until(lambda: in_the_engine(server) == 0, 2)


@pytest.mark.slow
def test_two_hundred_streams_at_once(server: ServerProcess) -> None:
    async def one(session: aiohttp.ClientSession, number: int) -> int:
        body = {"prompt": f"Count from {number}:", "max_tokens": 8, "ignore_eos": True, "stream": True, "seed": number}
        body["stream_options"] = {"include_usage": True}
        async with session.post(server.url + "/v1/completions", json=body) as reply:
            assert reply.status == 200
            lines = [line async for line in reply.content if line.startswith(b"data: ")]
        assert lines[-1] == b"data: [DONE]\n"
        tokens: int = json.loads(lines[-2][6:])["usage"]["completion_tokens"]
        return tokens

    async def ask() -> list[int]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(*(one(session, number) for number in range(200)))

    assert asyncio.run(ask()) == [8] * 200
    wait_until(lambda: in_the_engine(server) == 0, 2)
