"""A real server process: its start, its addresses, its settings, and how it ends."""

import asyncio
import os
import re
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.running import environment
from tests.serve.fakes import FakeEngine
from tests.serve.process import ServerProcess, events

from pelton.core.clock import SystemClock
from pelton.core.config import resolve
from pelton.core.errors import EngineDeadError
from pelton.engine.report import StartReport
from pelton.serve.listening import listen
from pelton.serve.metrics import Metrics
from pelton.serve.metrics.advice import CacheAdvice
from pelton.serve.run import run
from pelton.serve.settings import ServeSettings

pytestmark = pytest.mark.dist
WHOLE: dict[str, object] = {"max_tokens": 120, "ignore_eos": True, "temperature": 0}
LONG = {"prompt": "Count: one, two,", "stream": True, **WHOLE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def server(folder: Path, smollm2: Path) -> Iterator[ServerProcess]:
    """One server for all that only ask it."""
    with ServerProcess(
        folder,
        *("--api-key", "first", "--api-key", "second", "--served-model-name", "small", "--served-model-name", "tiny"),
        PELTON_MAX_NUM_SEQS="4",
        PELTON_MAX_MODEL_LEN="512",
        PELTON_PROT="8000",
    ) as running:
        yield running


KEY = {"Authorization": "Bearer second"}


def test_the_start_is_told(server: ServerProcess) -> None:
    told = server.told
    assert "note: The variable PELTON_PROT is set, and nothing here reads it; did you mean PELTON_PORT?" in told
    assert "max_num_seqs 4" in told and "at most 512 per request" in told
    assert "sampling temperature" in told
    assert re.search(rf"^ready    on {server.url} after [0-9.]+ s, as small, tiny$", told, re.MULTILINE)


def test_names_and_keys(server: ServerProcess) -> None:
    assert server.ask("/v1/models")[0] == 401
    status, models = server.ask("/v1/models", **KEY)
    assert status == 200 and models["data"][0]["id"] == "small"
    said = server.ask("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "model": "tiny"}, **KEY)
    assert said[0] == 200, said
    assert server.ask("/v1/completions", {"prompt": "Hi", "max_tokens": 2}, Authorization="Bearer x")[0] == 401


def test_heads_are_bounded_before_the_key_is_looked_at(server: ServerProcess) -> None:
    status, said = server.ask("/v1/models", X="a" * 70_000)
    assert (status, said["error"]["code"]) == (431, "headers_too_large")


def test_health(server: ServerProcess) -> None:
    assert server.ask("/health")[0] == 200
    server.wait_for(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO: .*GET /health")


def test_a_busy_port_is_told_at_once(folder: Path, server: ServerProcess) -> None:
    port = server.url.rpartition(":")[2]
    began = time.monotonic()
    with ServerProcess(folder, "no-such-model.gguf", "--port", port, ready=False) as second:
        assert second.process.wait(20) == 1
        assert f"error: --port {port} is in use on 127.0.0.1. End what listens there" in second.told
        assert "no-such-model" not in second.told
    assert time.monotonic() - began < 10


def test_it_listens_before_the_model_is_loaded(folder: Path, smollm2: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ServerProcess(folder, "--port", str(port), ready=False) as starting:
        starting.url = f"http://127.0.0.1:{port}"
        seen: list[int] = []
        while not seen or seen[-1] != 200:
            assert starting.process.poll() is None, starting.told
            try:
                response = starting.open("/health")
            except ConnectionRefusedError:
                time.sleep(0.02)
                continue
            response.read()
            seen.append(response.status)
            time.sleep(0.02)
        assert set(seen) == {200, 503}
        assert starting.end() == 0


def test_a_unix_socket(folder: Path, smollm2: Path) -> None:
    path = folder / "door"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with ServerProcess(folder, "--uds", str(path)) as running:
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
        assert running.url == f"unix:{path}"
        assert running.complete()["usage"]["completion_tokens"] == 8
        with ServerProcess(folder, "--uds", str(path), ready=False) as second:
            assert second.process.wait(20) == 1 and "a server answers there" in second.told
        assert running.end() == 0
    assert not path.exists()


def test_sigterm_lets_a_stream_end(folder: Path, smollm2: Path) -> None:
    with ServerProcess(folder, "--disable-access-log") as running:
        whole = running.complete("Count: one, two,", **WHOLE)["choices"][0]["text"]
        response = running.open("/v1/completions", LONG)
        response.readline()
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("ending: open requests get 30 s")
        assert running.ask("/health")[0] == 503
        status, refused = running.ask("/v1/completions", {"prompt": "Hi"})
        assert status == 503 and "error" in refused
        rest = events(response)
        assert rest[-1] == "[DONE]" and "error" not in rest[-2]
        text = "".join(choice["text"] for event in rest[:-1] for choice in event["choices"])
        assert whole.endswith(text) and len(text) > len(whole) // 2
        assert running.process.wait(10) == 0
        assert "Traceback" not in running.told


def family(pid: int) -> list[int]:
    """The processes that this one started, and those that they did, the last ones first."""
    children = [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    return [one for child in children for one in (*family(child), child)]


@pytest.mark.parametrize("engine_first", [True, False])
def test_a_signal_to_all_processes_is_a_clean_end(folder: Path, smollm2: Path, engine_first: bool) -> None:
    """As a service manager sends it: the engine process ends too, and nobody calls that an error."""
    with ServerProcess(folder, "--disable-access-log") as running:
        whole = running.complete("Count: one, two,", **WHOLE)["choices"][0]["text"]
        response = running.open("/v1/completions", LONG)
        response.readline()
        pids = [*family(running.process.pid), running.process.pid]
        assert len(pids) > 1
        for pid in pids if engine_first else pids[::-1]:
            os.kill(pid, signal.SIGTERM)
        rest = events(response)
        assert rest[-1] == "[DONE]" and "error" not in rest[-2]
        text = "".join(choice["text"] for event in rest[:-1] for choice in event["choices"])
        assert whole.endswith(text)
        assert running.process.wait(10) == 0
        said = running.told.partition("ending:")[2]
        assert said and not re.search("error|engine process|Traceback", said, re.IGNORECASE), said


def test_a_backend_without_its_package(folder: Path, smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    path = os.pathsep.join([str(tmp_path), str(environment()["PYTHONPATH"])])
    with ServerProcess(folder, ready=False, PYTHONPATH=path, PELTON_BACKEND="reference") as starting:
        assert starting.process.wait(30) == 1
        assert starting.told.splitlines() == [
            "error: PELTON_BACKEND=reference needs torch, which is not installed. Install it (pip install torch), or "
            "leave the setting out."
        ]


@pytest.mark.parametrize("second", [False, True])
def test_what_takes_too_long_is_ended_with_an_error(folder: Path, smollm2: Path, second: bool) -> None:
    timeout = "60" if second else "0.2"
    with ServerProcess(folder, "--shutdown-timeout", timeout) as running:
        response = running.open("/v1/completions", {**LONG, "max_tokens": 4000})
        response.readline()
        running.process.send_signal(signal.SIGINT)
        running.wait_for("ending:")
        if second:
            running.process.send_signal(signal.SIGTERM)
        rest = events(response)
        assert "error" in rest[-2] and rest[-1] == "[DONE]"
        assert running.process.wait(10) == 0
        assert "Traceback" not in running.told


def test_an_end_while_starting(folder: Path, smollm2: Path) -> None:
    with ServerProcess(folder, ready=False) as starting:
        time.sleep(0.6)
        assert starting.end() in (0, -signal.SIGTERM)
        assert "Traceback" not in starting.told


def test_an_engine_that_cannot_start_is_an_error(folder: Path, smollm2: Path) -> None:
    with ServerProcess(folder, "--max-model-len", "99999", ready=False) as starting:
        assert starting.process.wait(30) == 1
        assert (
            "error: --max-model-len 99999 is beyond the 8192 tokens" in starting.told
            and "Traceback" not in starting.told
        )


def test_the_api_gives_way_to_the_engine(server: ServerProcess) -> None:
    assert os.getpriority(os.PRIO_PROCESS, server.process.pid) == 10


class Dying(FakeEngine):
    """An engine that gives up a moment after its start."""

    failure = "The model's file is gone."
    report = StartReport("m", 1, "bfloat16", ((9, 64, None),), 32, 256, "cpu", "avx2", 1, (("open", 0.1),))

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[object] = []
        self.closed = False

    async def start(self) -> None:
        asyncio.get_running_loop().call_later(0.1, setattr, self, "state", "stopped")

    async def close(self) -> None:
        self.closed = True


def test_an_engine_that_gives_up_ends_the_server(monkeypatch: pytest.MonkeyPatch, own_logs: None) -> None:
    engine, told = Dying(), []
    monkeypatch.setattr("pelton.serve.run.AsyncEngine", lambda config, watchdog_seconds: engine)
    monkeypatch.setattr("os.nice", lambda steps: steps)
    settings = ServeSettings(port=0, served_model_names=("small",))
    with closing(listen(settings)) as listening:
        with pytest.raises(EngineDeadError, match="The engine process is gone. The model's file is gone."):
            run(resolve("m", {}), settings, listening, told.append, SystemClock().now())
        assert engine.closed and [type(one) for one in engine.observers] == [Metrics, CacheAdvice]
        assert told[-1].startswith(f"ready    on {listening.url} after ")
