"""The engine process dies, hangs, breaks or cannot start: every answer ends with an error, and it runs again."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from tests.process.engines import PATIENCE, SLOW, Notes, Settings, ask, free, settled, until, with_engine
from tests.process.faulty import BAD_ADD, BREAK, CRASH, HANG, LONG

from pelton.core.config import EngineConfig
from pelton.core.errors import CapacityError, CheckpointError, EngineDeadError, PeltonError, SettingError
from pelton.core.params import SamplingParams
from pelton.engine.process import child, pace, supervisor
from pelton.engine.process.answer import AsyncAnswer
from pelton.engine.process.client import AsyncEngine
from pelton.engine.process.supervisor import Watch

pytestmark = pytest.mark.dist
FAULTY = "tests.process.faulty"
BROKEN_START = "tests.process.broken_start"


async def text_of(answer: AsyncAnswer) -> str:
    return "".join([piece.text async for piece in answer])


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("number", "run_loop"), [(signal.SIGKILL, asyncio.run), (signal.SIGSEGV, asyncio.run), (signal.SIGKILL, uvloop.run)]
)
def test_killed_in_the_middle(
    settings: Settings, caplog: pytest.LogCaptureFixture, number: int, run_loop: Callable[..., object]
) -> None:
    notes = Notes()

    async def test(engine: AsyncEngine) -> None:
        engine.observers.append(notes)
        before = await text_of(ask(engine, "Hello there", 20))
        answers = [ask(engine, f"Hello {place}", 1900, n=1 + place % 2) for place in range(12)]
        # Of the others some wait: for a place among four, which second answers may take before them.
        await asyncio.gather(*(anext(answer) for answer in answers[:2]))
        first = engine.pid
        assert first is not None
        os.kill(first, number)
        for answer in answers:
            pieces = [piece async for piece in answer]
            output = await answer.output()
            assert pieces[-1].output == output and {one.finish_reason for one in output.outputs} == {"error"}
            assert output.error is not None and f"signal {int(number)}" in output.error
            assert output.error.endswith("while this request was running; it is being started again.")
        assert engine.state == "restarting" and not await engine.reset_prefix_cache()
        with pytest.raises(EngineDeadError, match="again in a few seconds"):
            ask(engine, "Hello")
        assert notes.rejected == ["restarting"] and len(notes.finished) == 13
        await until(lambda: engine.state == "running")
        assert engine.pid not in (None, first) and gone(first) and notes.restarts == 1
        assert await text_of(ask(engine, "Hello there", 20)) == before
        assert free(await settled(engine, free))

    with_engine(settings(max_num_seqs=4), test, run_loop=run_loop, module=SLOW)
    (told,) = [record.getMessage() for record in caplog.records if "; step" in record.getMessage()]
    assert f"signal {int(number)}, {signal.Signals(number).name}" in told and "rows" in told


def test_a_request_that_crashes_the_engine_is_named_in_the_log(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(engine: AsyncEngine) -> None:
        params = SamplingParams(seed=1, max_tokens=9)
        prompt = {"prompt_token_ids": [CRASH, *range(40, 60)]}
        answer = engine.submit(engine.requests.make(prompt, params, request_id="the-bad-one"))
        assert "SIGSEGV" in ((await answer.output()).error or "")

    with_engine(settings(), test, module=FAULTY)
    assert "was being computed: 21 tokens of 1 rows: the-bad-one [0, 21)" in caplog.text


def test_a_hang_is_killed(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    async def test(engine: AsyncEngine) -> None:
        await asyncio.sleep(1.2)  # an idle engine says nothing, and is let be
        assert engine.state == "running"
        other, answer = ask(engine, "Hello", 1900), ask(engine, [HANG, 70, 71], 5)
        began = time.monotonic()
        errors = [(await one.output()).error or "" for one in (answer, other)]
        assert 0.8 < time.monotonic() - began < PATIENCE
        assert all("killed: it was not heard of for" in error for error in errors)
        await until(lambda: engine.state == "running")
        assert len(await text_of(ask(engine, "Hello", 40))) > 5

    with_engine(settings(), test, module=FAULTY, watchdog_seconds=1.0)
    assert "[0, 3)" in caplog.text


@pytest.mark.parametrize("known", ["a step that took long", "the model's size"])
def test_a_step_that_takes_long_for_a_reason_is_no_hang(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    if known == "the model's size":
        monkeypatch.setattr(pace, "BYTES_PER_SECOND", 1e4)

    async def test(engine: AsyncEngine) -> None:
        first = engine.pid
        if known == "a step that took long":
            assert (await ask(engine, [LONG, 7, 71], 2).output()).error is None
        assert (await ask(engine, [LONG, 25, 71], 2).output()).error is None
        assert engine.pid == first

    with_engine(settings(), test, module=FAULTY, watchdog_seconds=1.0)


def test_a_step_that_breaks_fails_its_requests_and_no_other(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        process = engine.pid
        other, answer = ask(engine, "Hello", 1900), ask(engine, [BREAK, 70], 5)
        for one in (other, answer):
            assert "ZeroDivisionError: a bug in a step" in ((await one.output()).error or "")
        assert len((await ask(engine, "Hello", 40).output()).outputs[0].token_ids) == 40
        assert engine.pid == process and engine.state == "running"

    with_engine(settings(), test, module=FAULTY)


def test_a_bug_in_taking_a_request_in_harms_nobody(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        other, answer = ask(engine, "Hello", 400), ask(engine, [BAD_ADD, 70], 5)
        with pytest.raises(EngineDeadError, match="KeyError: 'a bug in taking requests in'"):
            await answer.output()
        assert len((await other.output()).outputs[0].token_ids) == 400
        assert engine.state == "running" and not engine._supervisor._tries

    with_engine(settings(), test, module=FAULTY)


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"num_blocks": 3, "max_model_len": 2048}, CapacityError, "max_model_len=2048"),
        ({"max_model_len": 9999}, SettingError, "max_model_len=9999"),
        ({"backend": "abacus"}, SettingError, "abacus"),
        ({"override_generation_config": '{"temperature": -1}'}, SettingError, "override_generation_config"),
    ],
)
def test_what_makes_the_start_impossible_is_raised_as_it_is(
    settings: Settings, changes: dict[str, object], kind: type[PeltonError], says: str
) -> None:
    failed_start(settings(**changes), kind, says)


def test_a_model_that_is_not_there(settings: Settings, tmp_path: Path) -> None:
    config = settings()
    shutil.copytree(config.model.model, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    broken = EngineConfig(model=type(config.model)(model=str(tmp_path / "model")))
    failed_start(broken, CheckpointError, "model.safetensors")


def failed_start(config: EngineConfig, kind: type[PeltonError], says: str, **options: object) -> None:
    """The start fails so, and leaves no process."""

    async def run() -> None:
        engine = AsyncEngine(config, **options)  # type: ignore[arg-type]
        with pytest.raises(kind, match=says) as raised:
            await engine.start()
        assert isinstance(raised.value, kind) and engine.pid is None
        await engine.close()

    asyncio.run(run())
    assert_no_children_for_long()


def assert_no_children_for_long() -> None:
    """One whose start was given up as it began sees the end of its socket once it is up."""
    deadline = time.monotonic() + PATIENCE
    while children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not children()


def children() -> list[int]:
    """Engine processes of this one that have not ended; servers of other tests may run beside them."""
    here: list[int] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(OSError):  # the thread ended meanwhile
            here += map(int, (task / "children").read_text().split())
    return [pid for pid in here if pid not in OTHERS and not gone(pid)]


OTHERS: set[int] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    """Notes who runs before the test."""
    OTHERS.clear()
    OTHERS.update(children())


def test_a_process_that_dies_while_it_starts(settings: Settings, tmp_path: Path) -> None:
    config = dying_model(settings, tmp_path)
    failed_start(config, EngineDeadError, "SIGKILL.*while it loaded the model", module=BROKEN_START)


def test_a_start_that_is_cancelled_leaves_no_process(settings: Settings) -> None:
    async def run(delay: float) -> None:
        engine = AsyncEngine(settings())
        start = asyncio.create_task(engine.start())
        await asyncio.sleep(delay)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await engine.close()

    for delay in (0.0, 0.01, 0.1):
        asyncio.run(run(delay))
        assert_no_children_for_long()


def dying_model(settings: Settings, folder: Path) -> EngineConfig:
    """A copy of the tiny model, at which BROKEN_START dies as long as its file "die" is there."""
    config = settings()
    shutil.copytree(config.model.model, folder / "model")
    (folder / "model" / "die").touch()
    return EngineConfig(
        model=type(config.model)(model=str(folder / "model"), max_model_len=512), backend=config.backend
    )


@pytest.mark.parametrize("recovers", [True, False])
def test_failures_to_start_again(settings: Settings, tmp_path: Path, recovers: bool) -> None:
    config = dying_model(settings, tmp_path)
    mark = tmp_path / "model" / "die"
    mark.unlink()

    async def test(engine: AsyncEngine) -> None:
        mark.touch()
        answer = ask(engine, "Hello", 400)
        await anext(answer)
        os.kill(engine.pid or 0, signal.SIGKILL)
        await until(lambda: engine._supervisor._tries > 1)
        if recovers:
            mark.unlink()
            await until(lambda: engine.state == "running")
            assert (await ask(engine, "Hello", 40).output()).error is None and engine.failure is None
            return
        await until(lambda: engine.state == "stopped")
        assert engine.failure is not None and "while it loaded the model" in engine.failure and engine.pid is None
        with pytest.raises(EngineDeadError, match="could not be started again"):
            ask(engine, "Hello")
        assert not await engine.reset_prefix_cache()

    watch = Watch(delays=(0.0, 0.1, 0.3), attempts=3 if not recovers else 20)
    with_engine(config, test, module=BROKEN_START, watch=watch)


LIMITS = [
    (child.socket, "socketpair"),
    (child, "shared_memory"),
    (child, "FlightRecord"),
    (child.subprocess, "Popen"),
    (child.os, "pidfd_open"),
    (child, "child_environment"),
]


def fail(*given: object, **named: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("where", "name"), LIMITS, ids=[name for _, name in LIMITS])
def test_a_limit_of_the_system_while_it_starts_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: object, name: str
) -> None:
    async def test(engine: AsyncEngine) -> None:
        files = open_files()
        with monkeypatch.context() as limit:
            limit.setattr(where, name, fail)
            os.kill(engine.pid or 0, signal.SIGKILL)
            await until(lambda: engine._supervisor._tries > 2)
            assert engine.state == "restarting" and children() == []
        await until(lambda: engine.state == "running")
        assert open_files() == files and children() == [engine.pid]
        assert (await ask(engine, "Hello", 40).output()).error is None
        monkeypatch.setattr(where, name, fail)
        os.kill(engine.pid or 0, signal.SIGKILL)
        await until(lambda: engine.state == "stopped")
        assert "Too many open files" in (engine.failure or "") and children() == []

    with_engine(settings(), test, watch=Watch(delays=(0.0, 0.02), attempts=5))
    assert "could not be started again (attempt 1): The engine process cannot be started:" in caplog.text


def test_a_bug_in_starting_again_is_a_failed_attempt(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(engine: AsyncEngine) -> None:
        def bug(config: object) -> str:
            raise KeyError("a bug")

        monkeypatch.setattr(supervisor, "config_text", bug)
        os.kill(engine.pid or 0, signal.SIGKILL)
        await until(lambda: engine.state == "stopped")
        assert "KeyError: 'a bug'" in (engine.failure or "") and children() == []

    with_engine(settings(), test, watch=Watch(delays=(0.0, 0.02), attempts=2))
    assert "(attempt 2): KeyError('a bug')" in caplog.text and "Traceback" in caplog.text


def test_an_engine_that_is_told_to_end_finishes_what_is_open(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        answers = [ask(engine, "Hello", 100) for _ in range(4)]
        await asyncio.gather(*(anext(answer) for answer in answers))  # all are in the engine
        first = engine.pid
        os.kill(first or 0, signal.SIGINT)  # as Ctrl-C does, which the parent is to handle
        os.kill(first or 0, signal.SIGTERM)
        await until(lambda: engine.state == "restarting")
        assert engine.pid == first
        with pytest.raises(EngineDeadError, match="again in a few seconds"):
            ask(engine, "Hello")
        outputs = [await answer.output() for answer in answers]
        assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
        await until(lambda: engine.state == "running" and engine.pid != first)
        assert (await ask(engine, "Hello", 4).output()).error is None

    with_engine(settings(), test, module=SLOW)


def test_an_engine_that_is_told_to_end_does_not_wait_without_limit(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        answers = [ask(engine, "Hello", 2000) for _ in range(16)]
        await asyncio.gather(*(anext(answer) for answer in answers))
        first = engine.pid
        os.kill(first or 0, signal.SIGTERM)
        outputs = [await answer.output() for answer in answers]
        assert all("told to end by a signal, it was not over after 0.04 seconds" in str(one.error) for one in outputs)
        await until(lambda: engine.state == "running")
        assert gone(first or 0) and (await ask(engine, "Hello", 40).output()).error is None

    with_engine(settings(), test, watch=Watch(finish=0.04), module=SLOW)


def test_one_that_leaves_itself_no_token_is_told_so_by_a_code(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        answer = ask(engine, "Hello", 40, allowed_token_ids=[65], bad_words=["AAA"], n=2)
        output = await answer.output()
        assert (output.error_code, [one.text for one in output.outputs]) == ("no_token_left", ["AA", "AA"])
        assert "No token is left" in (output.error or "") and output.outputs[1].finish_reason == "error"

    with_engine(settings(), test)


def test_told_to_end_while_draining_it_is_not_started_again(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        answer = ask(engine, "Hello", 100)
        await anext(answer)
        draining = asyncio.create_task(engine.drain(PATIENCE))
        await asyncio.sleep(0)
        os.kill(engine.pid or 0, signal.SIGTERM)
        assert (await answer.output()).outputs[0].finish_reason == "length"
        await draining
        await until(lambda: engine.pid is None)
        assert engine.state == "stopped" and engine.failure is None

    with_engine(settings(), test, module=SLOW)


def test_a_process_started_again_is_as_nice_as_the_first(settings: Settings) -> None:
    async def test(engine: AsyncEngine) -> None:
        before, first = os.getpriority(os.PRIO_PROCESS, 0), engine.pid or 0
        os.setpriority(os.PRIO_PROCESS, 0, before + 3)
        try:
            os.kill(first, signal.SIGKILL)
            await until(lambda: engine.state == "running" and engine.pid != first)
            assert os.getpriority(os.PRIO_PROCESS, engine.pid or 0) == before
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, before)

    with_engine(settings(), test)


PARENT = """
import asyncio, sys, time
from pelton.core.config import resolve
from pelton.core.params import SamplingParams
from pelton.engine.process.client import AsyncEngine

async def main():
    engine = AsyncEngine(resolve(sys.argv[1], {"num_blocks": 100, "threads": 1}))
    await engine.start()
    if sys.argv[2] == "busy":
        params = SamplingParams(max_tokens=3000, seed=1, ignore_eos=True)
        await anext(engine.submit(engine.requests.make("Hello", params)))
    print(engine.pid, flush=True)
    time.sleep(100)

asyncio.run(main())
"""


@pytest.mark.parametrize("at", ["busy", "idle"])
def test_no_process_outlives_its_parent(tiny: Path, at: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tiny), at], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    assert not gone(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + PATIENCE
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert gone(child)
