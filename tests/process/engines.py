"""Started engines for tests of processes: run a test with one, ask it, wait for what its stats are to become."""

import asyncio
from collections.abc import Awaitable, Callable

from pelton.core.config import EngineConfig
from pelton.core.counters import EngineStats
from pelton.core.events import Event
from pelton.core.params import SamplingParams
from pelton.core.request import Request, RequestOutput
from pelton.engine.process.answer import AsyncAnswer
from pelton.engine.process.client import AsyncEngine

Settings = Callable[..., EngineConfig]
Test = Callable[[AsyncEngine], Awaitable[None]]
PATIENCE = 20
SLOW = "tests.process.slow"  # what is asked for lasts, however long this process is held up


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[EngineStats] = []
        self.events: list[Event] = []
        self.finished: list[RequestOutput] = []
        self.rejected: list[str] = []
        self.restarts = 0

    def on_step(self, stats: EngineStats, events: tuple[Event, ...]) -> None:
        self.steps.append(stats)
        self.events += events

    def on_finished(self, output: RequestOutput, request: Request) -> None:
        assert output.finished and request.request_id == output.request_id
        self.finished.append(output)

    def on_restart(self) -> None:
        self.restarts += 1

    def on_rejected(self, reason: str) -> None:
        self.rejected.append(reason)


def with_engine(
    config: EngineConfig, test: Test, *, run_loop: Callable[..., object] = asyncio.run, **options: object
) -> None:
    """Runs the test with a started engine; no process is left."""

    async def run() -> None:
        engine = AsyncEngine(config, **options)  # type: ignore[arg-type]
        try:
            await engine.start()
            await test(engine)
        finally:
            await engine.close()
        assert engine.pid is None and engine.state == "stopped"

    run_loop(run())


def ask(engine: AsyncEngine, prompt: str | list[int], count: int = 8, **params: object) -> AsyncAnswer:
    sampling = SamplingParams(**{"max_tokens": count, "ignore_eos": True, "seed": 3, **params})  # type: ignore[arg-type]
    given = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    return engine.submit(engine.requests.make(given, sampling))


async def until(test: Callable[[], bool]) -> None:
    """Waits until it is so."""
    async with asyncio.timeout(PATIENCE):
        while not test():
            await asyncio.sleep(0.002)


async def settled(engine: AsyncEngine, test: Callable[[EngineStats], bool]) -> EngineStats:
    """The stats, once they are as wanted."""
    await until(lambda: test(engine.stats))
    return engine.stats


def free(stats: EngineStats) -> bool:
    return stats.kv_usage == 0 and stats.running == 0 and stats.waiting == 0
