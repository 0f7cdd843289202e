"""A `pelton serve` in a process of its own, and plain requests to it. Whoever starts one ends it."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tests.cli.running import RUN, environment

WAIT = 40.0  # seconds that anything here may take


class UnixConnection(http.client.HTTPConnection):
    """HTTP through a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WAIT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(WAIT)
        self.sock.connect(self._path)


class ServerProcess:
    """`url` is known once it is ready; what it told is in `told`."""

    def __init__(self, folder: Path, *words: str, ready: bool = True, **variables: str) -> None:
        self._log = folder / f"serve-{time.monotonic_ns()}.log"
        address = () if {"--port", "--uds"} & set(words) else ("--port", "0")
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, "serve", *address, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**variables),
            )
        self.url = ""
        if ready:
            self.url = self.wait_for(r"ready +on (\S+) after")

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def told(self) -> str:
        return self._log.read_text()

    def wait_for(self, pattern: str) -> str:
        """Waits until it tells this; the pattern's group."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.told):
                return match[1] if match.groups() else match[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} did not come in {self.told!r}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT)

    @property
    def engine_pid(self) -> int:
        """Its engine process."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        (found,) = [pid for pid in children if b"pelton.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return int(found)

    def connect(self) -> http.client.HTTPConnection:
        if self.url.startswith("unix:"):
            return UnixConnection(self.url.removeprefix("unix:"))
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=WAIT)

    def open(self, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        """The answer, once its first byte is there. GET without a body."""
        connection = self.connect()
        raw = None if body is None else json.dumps(body)
        kinds = {"Connection": "close"} | ({} if body is None else {"Content-Type": "application/json"})
        connection.request("GET" if raw is None else "POST", path, raw, {**kinds, **headers})
        return connection.getresponse()

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """(status, JSON of the answer or its text)."""
        response = self.open(path, body, **headers)
        text = response.read().decode()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def complete(self, prompt: str | list[str] = "Once upon a time", **fields: object) -> dict[str, Any]:
        """A whole completion."""
        status, said = self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields})
        assert status == 200, said
        return cast("dict[str, Any]", said)


def events(response: http.client.HTTPResponse) -> list[Any]:
    """The JSON of a stream's events; "[DONE]" for its end."""
    found: list[Any] = []
    for line in response:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return found
