"""`pelton bench serve` against a small server of known behaviour."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner
from tests.backends.probed import canned
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.bench import bench, probing
from pelton.core.environment import KNOWN, unknown_variables
from pelton.measure.bench.figures import result as figures

DELAY = 0.004


class Served:
    """Answers every request with `max_tokens` pieces, one each DELAY seconds. Counts what it was asked."""

    def __init__(self, socket: Path | None = None) -> None:
        self.socket = socket
        self.bodies: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.now = self.most = 0
        self.fail_every = 0
        self.only = ""  # the one model it answers to; "" for any
        self.cached = 0
        self.routes = {"/tokenize", "/reset_prefix_cache"}
        self.resets: list[int] = []  # after how many requests
        self.weights = 0  # bytes that /metrics tells of, as our servers' does; 0: there is no such route
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})

    async def reset(self, request: web.Request) -> web.Response:
        if request.path not in self.routes:
            raise web.HTTPNotFound
        self.resets.append(len(self.bodies))
        return web.json_response({"reset": True})

    async def metrics(self, request: web.Request) -> web.Response:
        if not self.weights:
            raise web.HTTPNotFound
        line = f'pelton:weight_bytes{{engine="0",model_name="m"}} {float(self.weights)}'
        return web.Response(text=f"# TYPE pelton:weight_bytes gauge\n{line}\n")

    async def tokenize(self, request: web.Request) -> web.Response:
        if request.path not in self.routes:
            raise web.HTTPNotFound
        words = (await request.json())["prompt"].split()
        return web.json_response({"tokens": [len(word) for word in words]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.only and body["model"] != self.only:
            message = f"There is no model {body['model']!r}."
            return web.json_response({"error": {"message": message}}, status=404)
        self.bodies.append(body)
        if self.fail_every and len(self.bodies) % self.fail_every == 0:
            return web.json_response({"error": {"message": "too much"}}, status=503)
        self.now += 1
        self.most = max(self.most, self.now)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        chat = request.path.endswith("chat/completions")
        self.headers.append(dict(request.headers))
        for _ in range(body["max_tokens"]):
            text = f"{len(body['messages'])} " if chat else "a"
            choice = {"delta": {"content": text}} if chat else {"text": text}
            await reply.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(DELAY)
        usage: dict[str, object] = {"prompt_tokens": 11, "completion_tokens": body["max_tokens"]}
        usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        await reply.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        self.now -= 1
        return reply

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/reset_prefix_cache", self.reset)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        if self.socket:
            await web.UnixSite(self._runner, str(self.socket)).start()

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
    assert result["max_output_tokens_per_s"] >= 5 and len(result["queue_times"]) == len(result["latencies"]) == 12
    assert max(result["queue_times"]) > DELAY > min(result["queue_times"])  # three at a time, nine waited


# What vLLM writes of a run, beside the figures (tests/measure/test_bench_figures.py).
SETUP = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "latencies", "queue_times"),
}
DETAILS = {"input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"}
OURS = {"workload", "client", "goodput_goals_ms", "prefix_cache_reset", "probe"}


@pytest.mark.parametrize(("flag", "more"), [("--save-result", set()), ("--save-detailed", DETAILS)])
def test_the_keys_of_a_file(served: Served, tmp_path: Path, flag: str, more: set[str]) -> None:
    words = f"--num-prompts 2 --input-len 3 --output-len 2 {flag} --result-dir {tmp_path}/new --result-filename r"
    run(served, *words.split())
    kept = json.loads((tmp_path / "new" / "r").read_text())
    assert kept.keys() - figures([], 1.0).keys() == SETUP | OURS | more
    assert kept["tokenizer_id"] == kept["model_id"] == "tiny" and kept["backend"] == "openai" == kept["endpoint_type"]
    assert kept["request_rate"] == "inf" and kept["request_goodput"] is None and kept["max_concurrency"] is None
    assert all(len(kept[key]) == 2 for key in more)


KEPT = "--num-prompts 1 --input-len 3 --output-len 4 --save-result --result-filename r"


def test_limits_are_quoted_of_our_server_here(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "load", lambda identity: canned(identity))
    served.weights = 64 << 20
    told = run(served, *KEPT.split(), "--result-dir", str(tmp_path))
    kept = json.loads((tmp_path / "r").read_text())
    part = kept["probe"]
    assert part["weight_bytes"] == 64 << 20 and part["weights_read_bytes_per_s"] == pytest.approx(40e9)
    assert part["weights_read_ms"] == pytest.approx((64 << 20) / 40e6)
    assert part["share_of_read_limit"] == pytest.approx(part["weights_read_ms"] / kept["median_tpot_ms"])
    assert "Reading the weights once (67.1 MB): 1.68 ms" in told and "busy" not in told


def test_the_load_that_counts_is_that_before_the_run(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([0.0])
    monkeypatch.setattr("os.getloadavg", lambda: (next(loads, 99.0), 0.0, 0.0))
    monkeypatch.setattr(probing, "load", lambda identity: None)
    monkeypatch.setattr(probing, "save", lambda probe: None)
    monkeypatch.setattr(probing, "measure", lambda *given, **more: replace(canned(), load_before=99.0))
    served.weights = 64 << 20
    assert "(probed on a busy machine)" not in run(served, *KEPT.split(), "--result-dir", str(tmp_path))
    assert "(probed on a busy machine)" in run(served, *KEPT.split(), "--result-dir", str(tmp_path))


@pytest.mark.parametrize("words", [(), ("--no-probe",)])
def test_limits_are_not_quoted_of_other_servers(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(probing, "load", lambda identity: pytest.fail("nothing is to be looked up"))
    for ours, local in ((0, True), (64 << 20, False)) if not words else ((64 << 20, True),):
        served.weights = ours
        monkeypatch.setattr(probing, "LOCAL", ("localhost", "127.0.0.1", "::1") if local else ())
        told = run(served, *KEPT.split(), "--result-dir", str(tmp_path), *words)
        assert json.loads((tmp_path / "r").read_text())["probe"] is None and "Reading the weights" not in told
        assert ("limits are left out" in told) is not bool(words)


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost", True),
        ("http://[::1]:80", True),
        ("unix:/run/x", True),
        ("http://10.0.0.1:8000", False),
        ("https://localhost.example.org", False),
    ],
)
def test_what_runs_here(server: str, local: bool) -> None:
    assert probing.is_local(server) is local


def test_requests_as_the_flags_say(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "a b"}\n')
    words = f"--workload custom --dataset-path {file} --num-prompts 1 --output-len 1 --backend openai-chat --model big"
    words += (
        " --served-model-name small --header X-A=1 --header X-B=2=3 --result-filename r --save-result --request-rate 50"
    )
    words += f" --result-dir {tmp_path} --metadata a=1 b=2 --percentile-metrics ttft,client_queue_time"
    told = run(served, *words.split())
    assert "Client-side Queueing" in told and "Inter-token" not in told
    body, headers = served.bodies[-1], served.headers[-1]
    assert body["messages"] == [{"role": "user", "content": "a b"}] and body["model"] == "small"
    assert headers["X-A"] == "1" and headers["X-B"] == "2=3"
    kept = json.loads((tmp_path / "r").read_text())
    assert kept["model_id"] == "big" and kept["backend"] == "openai-chat" and (kept["a"], kept["b"]) == ("1", "2")
    assert kept["request_rate"] == 50.0


def test_a_tokenizer_of_its_own_counts_the_tokens(served: Served, tmp_path: Path) -> None:
    model = tiny_talker(tmp_path)
    run(served, "--tokenizer", str(model), *"--num-prompts 1 --input-len 30 --output-len 1".split())
    prompt = served.bodies[-1]["prompt"]
    assert isinstance(prompt, list) and len(prompt) == 30
    assert min(prompt) > 20, "the server's tokens are lengths of words"


def test_the_folder_of_data_may_come_from_the_environment(
    served: Served, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PELTON_TEST_DATA", str(tmp_path))
    words = "--workload rag --num-prompts 2 --output-len 1 --num-warmups 0".split()
    assert "Name the folder of data sets by --data" in run(served, *words, code=2)
    monkeypatch.setenv("PELTON_BENCH_DATA", str(tmp_path / "absent"))
    assert "PELTON_BENCH_DATA=" in run(served, *words, code=2)
    monkeypatch.setenv("PELTON_BENCH_DATA", str(data))
    run(served, *words)
    assert len(served.bodies) == 2
    assert f"--data {tmp_path} has no" in run(served, *words, "--data", str(tmp_path), code=2)
    assert "PELTON_BENCH_DATA" in KNOWN and "PELTON_TEST_DATA" not in KNOWN
    assert "PELTON_TEST_DATA" not in unknown_variables([])
    monkeypatch.setenv("PELTON_TESTING", "1")
    assert "PELTON_TESTING" in unknown_variables([])


def test_turns_hold_the_answers_that_came(served: Served, data: Path) -> None:
    words = f"--workload agent --data {data} --num-prompts 7 --output-len 2 --num-warmups 2 --max-concurrency 2"
    run(served, *words.split())
    assert len(served.bodies) == 9 and served.most == 2
    talks = [body["messages"] for body in served.bodies]
    longest = max(talks, key=lambda messages: len(messages))  # type: ignore[arg-type]
    assert isinstance(longest, list)
    assert [message["role"] for message in longest] == ["system", "user", "assistant", "user", "assistant", "user"]
    # The server tells how many messages it was sent.
    assert [message["content"] for message in longest if message["role"] == "assistant"] == ["2 2 ", "4 4 "]


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
        ("a=b", "Goals follow --goodput"),
        ("--request-rate 0", "'--request-rate': 0.0 is not"),
        ("--request-rate nan", "'--request-rate': nan is no number"),
        ("--burstiness inf", "'--burstiness': inf is no number"),
        ("--price-per-hour -1", "'--price-per-hour': -1.0 is not"),
        ("--ready-check-timeout-sec -1", "'--ready-check-timeout-sec': -1.0 is not"),
        ("--port 70000", "'--port': 70000 is not"),
        ("--base-url here", "--base-url 'here' is no URL"),
        ("--base-url http://a:b", "--base-url 'http://a:b' is no URL"),
        ("--endpoint v1/x", "--endpoint 'v1/x' is no path"),
        ("--header x", "--header 'x' is no KEY=VALUE"),
        ("--metadata x", "--metadata 'x' is no KEY=VALUE"),
        ("--extra-body [1]", "--extra-body='[1]' is no table"),
        ("--extra-body {", "--extra-body is no JSON"),
        ('--extra-body {"a":1,"a":2}', "--extra-body has 'a' twice"),
        ("--metric-percentiles 101", "--metric-percentiles '101' must lie between 0 and 100"),
        ("--metric-percentiles a", "--metric-percentiles 'a' must be numbers"),
        ("--percentile-metrics speed", "--percentile-metrics 'speed' is none of ttft,"),
        ("--workload nothing", "Invalid value"),
        ("--dataset-name sharegpt", "there is no 'sharegpt'. There are: agent, batch,"),
        ("--dataset-name sharegpt", "Your own prompts: custom with --dataset-path FILE."),
        ("--base-url unix:", "--base-url 'unix:' names no socket"),
        ("--workload custom", "--dataset-path"),
        ("--workload custom --dataset-path absent", "--dataset-path absent is no file"),
        ("--dataset-path absent", "--dataset-path absent is the file of --workload custom"),
        ("--workload custom --dataset-path absent#a", "--dataset-path absent is no file"),
        ("--workload chat", "--data"),
        ("--workload chat --data absent", "'--data': Directory 'absent' does not exist"),
        ("--tokenizer ./absent", "--tokenizer ./absent: "),
        ("--backend openai-chat", "--backend openai-chat takes no token ids, and --workload random"),
        ("--save-result --result-dir /dev/null/x", "--result-dir"),
    ],
)
def test_impossible_flags_are_named_before_anything_is_asked(words: str, what: str) -> None:
    done = CliRunner().invoke(bench, ["serve", "--ready-check-timeout-sec", "60", *words.split()])
    assert done.exit_code == 2, (done.output, done.exception)
    assert what in " ".join(done.output.split())


def test_no_server() -> None:
    done = CliRunner().invoke(bench, "serve --port 9 --ready-check-timeout-sec 0.1 --num-prompts 1".split())
    assert done.exception is not None and "cannot be reached" in str(done.exception)
