"""`pelton bench serve` against a small server of known behaviour."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from pelton.cli.commands.bench import bench

DELAY = 0.004


class Served:
    """Answers every request with `max_tokens` pieces, one each DELAY seconds. Counts what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.now = self.most = 0
        self.fail_every = 0
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        words = (await request.json())["prompt"].split()
        return web.json_response({"tokens": [len(word) for word in words]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.fail_every and len(self.bodies) % self.fail_every == 0:
            return web.json_response({"error": {"message": "too much"}}, status=503)
        self.now += 1
        self.most = max(self.most, self.now)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        chat = request.path.endswith("chat/completions")
        for _ in range(body["max_tokens"]):
            choice = {"delta": {"content": "a"}} if chat else {"text": "a"}
            await reply.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(DELAY)
        usage = {"prompt_tokens": 11, "completion_tokens": body["max_tokens"]}
        await reply.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        self.now -= 1
        return reply

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def stop(self) -> None:
        assert self._runner is not None
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    server.start()
    yield server
    server.stop()


def run(server: Served, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(bench, ["serve", "--port", str(server.port), "--disable-tqdm", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_a_run_and_its_file(served: Served, tmp_path: Path) -> None:
    output = run(
        served,
        *"--num-prompts 12 --input-len 20 --output-len 5 --max-concurrency 3 --save-detailed --label mine".split(),
        *f"--metadata who=me --price-per-hour 2 --result-dir {tmp_path} --result-filename r.json".split(),
        *"--goodput ttft:60000 itl:60000".split(),
    )
    assert "Successful requests" in output and "SLO attainment" in output and "Cost per million tokens" in output
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["completed"] == 12 and result["failed"] == 0 and result["slo_attainment"] == 1.0
    assert result["total_output_tokens"] == 60 and result["total_input_tokens"] == 132
    assert result["model_id"] == "tiny" and result["label"] == "mine" and result["who"] == "me"
    assert served.most == 3 == result["max_concurrent_requests"]
    assert len(served.bodies) == 13  # one before it counts
    assert {len(body["prompt"]) for body in served.bodies} == {20}  # type: ignore[arg-type]
    assert all(body["temperature"] == 0.0 and body["ignore_eos"] is True for body in served.bodies)
    assert all(len(gaps) == 4 for gaps in result["itls"])
    assert result["median_itl_ms"] >= DELAY * 1000 * 0.9
    assert {"mean_ttft_ms", "p99_tpot_ms", "std_e2el_ms", "request_goodput", "output_throughput"} <= result.keys()


def test_conversations_go_to_the_chat_route(served: Served, data: Path) -> None:
    run(served, *f"--workload chat --data {data} --num-prompts 3 --output-len 2 --num-warmups 0 --top-k 4".split())
    assert len(served.bodies) == 3
    for body in served.bodies:
        messages = body["messages"]
        assert isinstance(messages, list) and messages[0]["role"] == "system"
        assert body["top_k"] == 4


def test_failures_are_counted_and_told(served: Served, tmp_path: Path) -> None:
    served.fail_every = 4
    done = CliRunner().invoke(
        bench,
        ["serve", "--port", str(served.port), "--disable-tqdm", "--num-warmups", "0", "--num-prompts", "8"]
        + ["--input-len", "4", "--output-len", "2", "--save-result", "--result-dir", str(tmp_path)],
    )
    assert "2 of 8 requests failed" in str(done.exception) and "too much" in str(done.exception)
    (file,) = tmp_path.glob("pelton-tiny-*.json")
    assert json.loads(file.read_text())["failed"] == 2


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--goodput speed:3", "no goal"),
        ("ttft:3", "Goals follow --goodput"),
        ("--request-rate 0", "above 0"),
        ("--extra-body [1]", "JSON table"),
        ("--metric-percentiles 101", "between 0 and 100"),
        ("--workload nothing", "Invalid value"),
    ],
)
def test_impossible_flags(words: str, what: str) -> None:
    done = CliRunner().invoke(bench, ["serve", "--port", "1", *words.split()])
    assert done.exit_code == 2 and what in done.output


def test_no_server() -> None:
    done = CliRunner().invoke(bench, "serve --port 9 --ready-check-timeout-sec 0.1 --num-prompts 1".split())
    assert done.exception is not None and "cannot be reached" in str(done.exception)
