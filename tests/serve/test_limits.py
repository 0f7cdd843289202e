"""What clients may do to a connection: how much they send, how slowly, ahead of their turn, and how they leave."""

import asyncio
import json
import logging
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from tests.serve.fakes import FakeEngine, make_app
from tests.serve.test_run import Dying

from pelton.core.clock import SystemClock
from pelton.core.config import resolve
from pelton.core.errors import SettingError
from pelton.serve.listening import Listening, connections_at_most, listen
from pelton.serve.protocol import Bounds, Line
from pelton.serve.run import run
from pelton.serve.settings import ServeSettings

LONG = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
WAIT = 5.0


class Door:
    """A server in a thread of its own."""

    def __init__(self, engine: FakeEngine, port: int) -> None:
        self.engine = engine
        self._port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=WAIT)

    def say(self, *parts: bytes) -> bytes:
        """Sends all; everything that comes until the server closes."""
        with self.connect() as client:
            for part in parts:
                client.sendall(part)
            return rest_of(client)

    def until(self, good: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT
        while not good():
            assert time.monotonic() < end
            time.sleep(0.005)


@contextmanager
def a_door(
    head_bytes: int = 4096,
    seconds: float = 10.0,
    connections: int = 100,
    engine: FakeEngine | None = None,
    **settings: Any,
) -> Iterator[Door]:
    """The protocol with these bounds over a fake engine."""
    engine = engine or FakeEngine()
    bounds = Bounds(head_bytes, seconds, connections)
    config = uvicorn.Config(
        make_app(engine, **settings),
        loop="none",
        http=bounds.protocol(),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    opened = socket.create_server(("127.0.0.1", 0))
    port = opened.getsockname()[1]
    thread = threading.Thread(target=lambda: uvloop.run(server.serve([opened])))
    thread.start()
    try:
        yield Door(engine, port)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """One for all that need nothing special."""
    with a_door() as opened:
        yield opened


def post(body: object, path: str = "/v1/completions", **headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"Host": "x", "Content-Length": str(len(raw)), **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return head.encode() + b"\r\n" + raw


def get(path: str, *headers: bytes) -> bytes:
    return b"\r\n".join([f"GET {path} HTTP/1.1".encode(), b"Host: x", *headers, b"", b""])


def rest_of(client: socket.socket) -> bytes:
    """What still comes until the server closes; a reset is no end."""
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def told(answer: bytes) -> tuple[int, str]:
    """Status and code of the last answer, which is an error."""
    answer = answer[answer.rindex(b"HTTP/1.1 ") :]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head and b"x-request-id: " in head and b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


# ---------------------------------------------------------------------------------------------------
# ahead of their turn


@pytest.mark.parametrize("behind", [b"", post(LONG), post(LONG) * 20, b"\0\1\2", b"GET /unfinished"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed_whatever_it_sent_behind(
    behind: bytes, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with a_door(engine=FakeEngine(delay=0.02)) as door:
        client = door.connect()
        client.sendall(post({**LONG, "stream": stream}))
        door.until(lambda: door.engine.open == 1)
        client.sendall(behind)
        time.sleep(0.05)
        assert door.engine.open == 1
        client.close()
        left = time.monotonic()
        door.until(lambda: door.engine.open == 0)
        assert time.monotonic() - left < 1
        assert len(door.engine.aborted) == len(door.engine.submitted) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_client_that_resets_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    with a_door(engine=FakeEngine(delay=0.001)) as door:
        for number in range(20):
            client = door.connect()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(post({"prompt": "a", "max_tokens": number, "stream": number % 2 == 0}) * 3)
            time.sleep(0.002 * (number % 5))
            client.close()
        door.until(lambda: door.engine.open == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("at_once", [True, False])
def test_only_the_first_of_those_sent_ahead_is_answered(at_once: bool) -> None:
    with a_door(engine=FakeEngine(delay=0.01)) as door:
        short = post({"prompt": "a", "max_tokens": 9})
        parts = [short * 3] if at_once else [short, short, short]
        answer = door.say(*parts)
        assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 200 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 9
        assert len(door.engine.submitted) == 1


def test_one_after_the_other(door: Door) -> None:
    with door.connect() as client:
        for _ in range(3):
            client.sendall(get("/health"))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(get("/health", b"Connection: close"))
        assert b"connection: close" in rest_of(client)


# ---------------------------------------------------------------------------------------------------
# too much, and no HTTP

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
MUCH = 1 << 20


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (get("/" + "a" * 5000), 414, "url_too_long"),
        (b"GET /" + b"a" * MUCH, 414, "url_too_long"),
        (get("/health", b"X: " + b"a" * 5000), 431, "headers_too_large"),
        (get("/health", *[b"X%d: a" % number for number in range(1000)]), 431, "headers_too_large"),
        (b"GET /health HTTP/1.1\r\nX: " + b"a" * 5000, 431, "headers_too_large"),
        (b"GET /health HTTP/1.1\r\nX: " + b"a" * MUCH, 431, "headers_too_large"),
        (b"GET /health HTTP/1.1\r\n" + b"a" * MUCH, 431, "headers_too_large"),
        (CHUNKED[:-3] + b"0" * MUCH, 431, "headers_too_large"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "invalid_http"),
        (b"BREW /pot HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (b"GET /\0 HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (post(b"", **{"Content-Length": "-1"}), 400, "invalid_http"),
        (CHUNKED.replace(b"2\r\n", b"zz\r\n"), 400, "invalid_http"),
    ],
)
def test_what_is_not_taken_is_told_in_json(door: Door, sent: bytes, status: int, code: str) -> None:
    assert told(door.say(sent)) == (status, code)


def test_a_head_within_the_bound_is_taken(door: Door) -> None:
    head = get("/health", b"X: " + b"a" * 3900, b"Connection: close")
    assert door.say(head).startswith(b"HTTP/1.1 200 ")
    assert door.say(*(head[place : place + 100] for place in range(0, len(head), 100))).startswith(b"HTTP/1.1 200 ")


def test_a_head_behind_a_long_body_is_none_too_large(door: Door) -> None:
    unknown = post(b"a" * 100_000, "/nowhere")
    with door.connect() as client:
        client.sendall(unknown[:-90_000])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
        client.sendall(unknown[-90_000:] + get("/health")[:20])
        time.sleep(0.05)
        client.sendall(get("/health", b"Connection: close")[20:])
        assert rest_of(client).startswith(b"HTTP/1.1 200 ")


def test_headers_behind_the_body_are_bounded_and_do_nothing() -> None:
    with a_door(engine=FakeEngine(delay=0.01)) as door:
        answer = door.say(CHUNKED + b"X-Request-Id: behind\r\nA: b\r\n\r\n", get("/health", b"Connection: close"))
        assert b"x-request-id: " in answer and b"x-request-id: behind" not in answer
        assert told(door.say(CHUNKED + b"X: " + b"a" * MUCH)) == (431, "headers_too_large")


def test_whoever_sends_first_and_reads_later_reads_why_it_is_refused() -> None:
    with a_door(max_body_bytes=1000) as door:
        assert told(door.say(post(b"a" * (8 << 20)))) == (413, "body_too_large")


# ---------------------------------------------------------------------------------------------------
# too slowly


@pytest.mark.parametrize(
    "sent", [b"GE", b"GET /health HTTP/1.1\r\nHo", post(LONG)[:-1], CHUNKED, get("/health") + b"\r\nGET"]
)
def test_who_stops_in_the_middle_is_cut_off(sent: bytes) -> None:
    with a_door(seconds=0.2) as door:
        began = time.monotonic()
        parts = sent.partition(b"\r\nGET") if b"\r\nGET" in sent else (sent,)
        with door.connect() as client:
            for part in parts:
                client.sendall(part)
                time.sleep(0.05)
            assert told(rest_of(client)) == (408, "request_too_slow")
        assert 0.15 < time.monotonic() - began < 2
        assert not door.engine.submitted


def test_who_says_nothing_is_told_nothing() -> None:
    with a_door(seconds=0.2) as door:
        assert door.say() == door.say(b"\r\n") == b""


def test_a_slow_head_is_cut_off_though_bytes_come() -> None:
    with a_door(seconds=0.3) as door, door.connect() as client:
        began = time.monotonic()
        for _ in range(20):
            client.sendall(b"GET" if _ == 0 else b" ")
            time.sleep(0.05)
            if time.monotonic() - began > 0.45:
                break
        assert told(rest_of(client))[0] == 408


def test_a_slow_body_and_a_long_answer_are_not() -> None:
    with a_door(seconds=0.2, engine=FakeEngine(delay=0.01)) as door, door.connect() as client:
        sent = post({"prompt": "a", "max_tokens": 50}, Connection="close")
        client.sendall(sent[:-8])
        for byte in sent[-8:]:
            time.sleep(0.06)
            client.sendall(bytes([byte]))
        answer = rest_of(client)
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"completion_tokens":50' in answer


def test_a_body_that_nobody_reads_has_its_time() -> None:
    """The answer is there before the body is, and no second one comes."""
    with a_door(seconds=0.2, api_keys=("secret",)) as door, door.connect() as client:
        client.sendall(post(b"a" * 1000)[:-1])
        answer = rest_of(client)
        assert answer.startswith(b"HTTP/1.1 401 ") and answer.count(b"HTTP/1.1 ") == 1


def test_none_is_cut_off_where_there_is_no_limit() -> None:
    with a_door(seconds=0) as door, door.connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)


# ---------------------------------------------------------------------------------------------------
# too many


def test_connections_beyond_the_bound_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with a_door(connections=2) as door:
        first, second = door.connect(), door.connect()
        with first, second:
            for client in (first, second):
                client.sendall(get("/health"))
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            for _ in range(3):
                answer = door.say()
                assert told(answer) == (503, "overloaded") and b"retry-after: " in answer.lower()
            first.sendall(get("/health"))
            assert first.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        door.until(lambda: door.say(get("/health", b"Connection: close")).startswith(b"HTTP/1.1 200 "))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == ["2 connections are open, and more are refused (ulimit -n bounds them)"]


@pytest.mark.parametrize(
    ("limits", "raised", "least", "most"),
    [
        ((1024, 4096), 4096, 3900, 4032),
        ((1024, resource.RLIM_INFINITY), 1 << 16, 65000, 65472),
        ((60, 60), None, 1, 40),
        ((resource.RLIM_INFINITY,) * 2, None, 65000, 65472),
        ((4, 4), None, 1, 1),
    ],
)
def test_descriptors_are_left_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: int | None, least: int, most: int
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr("os.listdir", lambda path: ["fd"] * 20)
    monkeypatch.setattr("resource.getrlimit", lambda kind: limits)
    monkeypatch.setattr("resource.setrlimit", lambda kind, pair: set_to.append(pair))
    assert least <= connections_at_most() <= most
    assert set_to == ([] if raised is None else [(raised, limits[1])])


def test_what_is_written_to_a_closed_connection_is_dropped() -> None:
    class Closed(asyncio.Transport):
        def is_closing(self) -> bool:
            return True

        def write(self, data: object) -> None:
            raise RuntimeError("unable to perform operation")

    Line(Closed()).write(b"a")


# ---------------------------------------------------------------------------------------------------
# HTTPS


def test_files_that_are_not_for_https_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no key\n")
    bad = str(tmp_path / "bad.pem")
    with pytest.raises(SettingError, match="ssl_certfile='.*bad.pem' is no certificate"):
        listen(ServeSettings(port=0, ssl_certfile=bad, ssl_keyfile=bad))


def test_a_web_server_that_cannot_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_logs: None
) -> None:
    """What is wrong with its files may begin after they were looked at."""
    (tmp_path / "bad.pem").write_text("no key\n")
    bad = str(tmp_path / "bad.pem")
    engine = Dying()
    monkeypatch.setattr("pelton.serve.run.AsyncEngine", lambda config, watchdog_seconds: engine)
    monkeypatch.setattr("os.nice", lambda steps: steps)
    settings = ServeSettings(port=0, served_model_names=("small",), ssl_certfile=bad, ssl_keyfile=bad)
    with closing(Listening(socket.create_server(("127.0.0.1", 0)), "https://x")) as listening:
        with pytest.raises(ssl.SSLError):
            run(resolve("m", {}), settings, listening, print, SystemClock().now())
    assert engine.closed
