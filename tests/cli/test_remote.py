"""chat and complete with --url: a server answers, ours or another with OpenAI's routes."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli.running import Terminal, invoke
from tests.serve.process import ServerProcess

from pelton import LLM, SamplingParams
from pelton.cli.commands.live.kv import _held_for, _requests

PROMPT = "Once upon a time, there was"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[ServerProcess]:
    words = ("--max-model-len", "512", "--api-key", "sesame", "--served-model-name", "small", "--strict")
    with ServerProcess(tmp_path_factory.mktemp("serve"), *words) as running:
        yield running


def words(server: ServerProcess) -> tuple[str, ...]:
    return ("--url", server.url, "--api-key", "sesame")


@pytest.mark.dist
def test_complete(server: ServerProcess, llm: LLM) -> None:
    result = invoke("complete", PROMPT, *words(server), "--temperature", "0", "--max-tokens", "12", "--stats")
    (output,) = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == output.outputs[0].text + "\n"
    assert f"{len(output.prompt_token_ids)} tokens in, 12 out; ended by length" in result.stderr
    assert "first token after" in result.stderr and "tokens/s" in result.stderr


@pytest.mark.dist
def test_complete_with_everything(server: ServerProcess, llm: LLM) -> None:
    """A strict server takes what the flags come to."""
    fields = ("--seed", "3", "--n", "2", "--top-p", "0.9", "--top-k", "20", "--min-p", "0.01", "--min-tokens", "2")
    more = ("--repetition-penalty", "1.1", "--presence-penalty", "0.1", "--frequency-penalty", "0.1", "--stop", "zzz")
    last = ("--bad-word", "dragon", "--stop-token-id", "5", "--ignore-eos", "--logprobs", "2", "--max-tokens", "5")
    result = invoke("complete", PROMPT, *words(server), *fields, *more, *last)
    assert result.exit_code == 0, result.stderr
    params = SamplingParams(
        n=2, seed=3, top_p=0.9, top_k=20, min_p=0.01, min_tokens=2, repetition_penalty=1.1, presence_penalty=0.1,
        frequency_penalty=0.1, stop="zzz", bad_words="dragon", stop_token_ids=[5], ignore_eos=True, max_tokens=5,
    )  # fmt: skip
    answers = [answer.text for answer in llm.generate(PROMPT, params, use_tqdm=False)[0].outputs]
    assert sorted(result.stdout.splitlines()) == sorted("\n".join(answers).splitlines())
    header = next(line for line in result.stderr.splitlines() if "likeliest" in line)
    assert header.split() == ["token", "logprob", "likeliest"]
    assert len(result.stderr.partition(header)[2].splitlines()) == 1 + 10


@pytest.mark.dist
def test_chat(server: ServerProcess, llm: LLM) -> None:
    result = invoke("chat", *words(server), "--temperature", "0", "--max-tokens", "9", stdin="Hello!\nAnd now?\n")
    assert result.exit_code == 0, result.stderr
    said = [{"role": "user", "content": "Hello!"}]
    params = SamplingParams(temperature=0, max_tokens=9)
    first = llm.chat(said, params, use_tqdm=False)[0].outputs[0].text
    said += [{"role": "assistant", "content": first}, {"role": "user", "content": "And now?"}]
    second = llm.chat(said, params, use_tqdm=False)[0].outputs[0].text
    assert result.stdout == f"{first}\n{second}\n"


@pytest.mark.dist
def test_kv(server: ServerProcess) -> None:
    long = " ".join(f"word{number}" for number in range(60))
    assert invoke("complete", long, *words(server), "--max-tokens", "1").exit_code == 0
    shown = invoke("kv", server.url, "--api-key", "sesame")
    assert shown.exit_code == 0, shown.stderr
    assert "all tokens" in shown.stdout and "1 namespace," in shown.stdout and " cached" in shown.stdout
    assert "\nhost slots: 0 of " in shown.stdout and "\nfiles: " not in shown.stdout
    assert "\nsession" not in shown.stdout and "\nrequest" not in shown.stdout
    body, key = {"prompt": long, "max_tokens": 2, "temperature": 0}, {"Authorization": "Bearer sesame"}
    assert server.ask("/v1/completions", {**body, "session_id": "mine"}, **key)[0] == 200
    assert server.ask("/v1/completions", {**body, "id_slot": 3}, **key)[0] == 200
    shown = invoke("kv", server.url, "--api-key", "sesame")
    assert re.search(r"\nsession +tokens +blocks\nslot-3 +\d+ +\d+\n[0-9a-f]{12} +\d+ +\d+\n", shown.stdout)
    few = invoke("kv", server.url, "--api-key", "sesame", "--requests", "1").stdout
    assert "\nslot-3 " in few and "\n1 session more\n" in few
    told = json.loads(invoke("kv", server.url, "--api-key", "sesame", "--json", "--runs", "1").stdout)
    assert len(told["tree"][0]["children"]) == 1 and told["groups"][0]["cached"] > 0
    refused = invoke("kv", server.url, "--api-key", "sesame", "--tokens")
    assert refused.exit_code == 1 and "--show-cached-tokens" in refused.stderr
    assert invoke("kv", server.url).exit_code == 1


def test_names_of_clients_move_no_cursor() -> None:
    told = {"held_for": [{"session": "\x1b[2J\nfake: 9", "tokens": 3, "blocks": 1}]}
    told["requests"] = [{"id": "a\x9bb", "state": "running", "session": "\u202e"}]
    shown = "\n".join([*_requests(told), *_held_for(told)])
    assert "\\x1b[2J\\nfake: 9" in shown and "a\\x9bb" in shown and "\\u202e" in shown
    assert all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.dist
def test_keys(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("complete", "Hi", "--url", server.url, "--max-tokens", "1")
    refused = invoke(*ask)
    assert refused.exit_code == 1
    assert refused.stderr.endswith("Give its key by --api-key, or in the variable PELTON_API_KEY.\n")
    for keys in ("sesame", " sesame, other", '["sesame", "other"]'):
        monkeypatch.setenv("PELTON_API_KEY", keys)
        assert invoke(*ask).exit_code == 0
    assert invoke(*ask, "--api-key", "wrong").exit_code == 1
    monkeypatch.setenv("PELTON_API_KEY", "[")
    assert invoke(*ask).stderr.endswith("Error: PELTON_API_KEY cannot work. It must be a text or a list of texts.\n")


@pytest.mark.dist
def test_one_message(server: ServerProcess, llm: LLM) -> None:
    result = invoke("chat", "small", *words(server), "-q", "Hi", "--temperature", "0", "--max-tokens", "4")
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(temperature=0, max_tokens=4))
    assert result.stdout == output.outputs[0].text + "\n"


@pytest.mark.dist
def test_ctrl_c_stops_the_answer_and_the_server(server: ServerProcess, terminal: Callable[..., Terminal]) -> None:
    talk = terminal("chat", *words(server), "--ignore-eos", "--max-tokens", "450", "--temperature", "0")
    talk.wait_for("> ")
    talk.send("Tell me everything about water.\n")
    talk.wait_for(r"\w+ \w+ \w+")
    talk.interrupt()
    talk.wait_for("\n> ")
    talk.send("/exit\n")
    assert talk.end() == 0
    metrics = server.ask("/metrics", Authorization="Bearer sesame")[1]
    assert 'pelton:aborted_total{engine="0",model_name="small",reason="disconnect"} 1.0' in metrics


@pytest.mark.dist
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--api-key", "wrong"), "error: The server refused (status 401): "),
        (("--api-key", "sesame", "--model", "other"), "error: The server refused (status 404): "),
        (("--api-key", "sesame", "--max-tokens", "9999"), "error: The server refused (status 400): "),
    ],
)
def test_what_the_server_refuses_is_one_line(server: ServerProcess, more: tuple[str, ...], said: str) -> None:
    result = invoke("complete", PROMPT, "--url", server.url, *more)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(said) and result.stderr.count("\n") == 1


@pytest.mark.dist
def test_a_refused_message_does_not_end_the_chat(server: ServerProcess) -> None:
    long = "word " * 600
    result = invoke("chat", *words(server), "--max-tokens", "3", stdin=f"{long}\nHello!\n")
    assert result.exit_code == 0
    assert result.stderr.count("error: The server refused (status 400): ") == 1
    assert result.stdout.strip()


# ---------------------------------------------------------------------------------------------------
# other servers


class Other(BaseHTTPRequestHandler):
    """A server whose stream is `says`, one event for each."""

    says: tuple[object, ...] = ()
    asked: list[object] = []
    models = b'{"data": [{"id": "theirs"}]}'

    def do_GET(self) -> None:
        self._answer("application/json", self.models)

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in self.says]
        self._answer("text/event-stream", "".join(f"{line}\n\n" for line in lines).encode())

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Other, "asked", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def piece(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def test_another_server(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that tells no usage, and comments in between."""
    monkeypatch.setattr(Other, "says", (": hello", piece("One"), piece(" two"), piece("", "stop"), "data: [DONE]"))
    result = invoke("chat", "--url", f"{other}/v1/", "-q", "Count", "--stats", "--top-k", "3")
    assert result.stdout == "One two\n" and "2 out; ended by stop" in result.stderr
    (asked,) = Other.asked
    assert asked == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Count"}],
        "max_tokens": 1024,
        "top_k": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ((piece("One"), {"error": {"message": "The engine died.", "code": 500}}), "The engine died."),
        ((piece("One"),), "the stream ended in the middle of the answer. The server's log may say why."),
        (("data: {", "data: [DONE]"), "no JSON. Is it one with OpenAI's routes?"),
    ],
)
def test_a_stream_that_fails(other: str, monkeypatch: pytest.MonkeyPatch, says: tuple[object, ...], said: str) -> None:
    monkeypatch.setattr(Other, "says", says)
    result = invoke("chat", "--url", other, "-q", "Count")
    assert result.exit_code == 1 and result.stderr.splitlines()[-1].endswith(said)
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_a_server_without_a_model(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Other, "models", b'{"data": []}')
    result = invoke("complete", "--url", other, "hi")
    assert result.stderr == f"error: {other} has no model yet. Wait until it has loaded one.\n"


def test_nobody_there() -> None:
    result = invoke("complete", "--url", "http://127.0.0.1:9", "hi")
    assert result.exit_code == 1 and result.stderr.startswith("error: http://127.0.0.1:9 does not answer: ")
    assert result.stderr.endswith("Is a server running there?\n") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:99999999"])
def test_no_url(url: str) -> None:
    result = invoke("complete", "--url", url, "hi")
    assert result.exit_code == 1 and f"--url {url} is no address." in result.stderr


@pytest.mark.parametrize("flag", ["--threads", "--prompt-logprobs", "--max-num-seqs"])
def test_flags_of_a_model_here(flag: str) -> None:
    result = invoke("complete", "--url", "http://127.0.0.1:9", flag, "1", "hi")
    assert result.exit_code == 2
    assert f"{flag} is about a model in this process, and --url asks another one." in result.stderr


@pytest.mark.parametrize("url", ["notaurl", "127.0.0.1:8000", "ftp://x"])
def test_kv_of_no_url(url: str) -> None:
    result = invoke("kv", url)
    assert result.exit_code == 1
    assert result.stderr == f"error: URL {url} is no address. Write it like http://127.0.0.1:8000.\n"


class Page(BaseHTTPRequestHandler):
    """A server for people."""

    status = 200

    def do_GET(self) -> None:
        body = b"<!DOCTYPE html><html><body><h1>Welcome</h1></body></html>"
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.parametrize(
    ("status", "kv", "complete"),
    [
        (200, "The server answered with text/html in place of JSON.", None),
        (404, "{url} has nothing at /kv/tree (status 404).", "The server refused (status 404) with a page for people."),
        (503, None, "The server refused (status 503) with a page for people."),
    ],
)
def test_a_server_for_people(
    monkeypatch: pytest.MonkeyPatch, status: int, kv: str | None, complete: str | None
) -> None:
    monkeypatch.setattr(Page, "status", status)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{listening.server_port}"
        live, asked = invoke("kv", url), invoke("complete", "--url", url, "hi")
        listening.shutdown()
        thread.join()
    started = "Is it one that `pelton serve` started? Name it like http://127.0.0.1:8000."
    assert live.exit_code == asked.exit_code == 1 and "Welcome" not in live.stderr + asked.stderr
    assert live.stderr == f"error: {(kv or complete or '').format(url=url)} {started}\n"
    assert asked.stderr == f"error: {complete or kv} Is it one with OpenAI's routes?\n"
