"""bench.peers.arrival: gaps of answers under way while a long prompt arrives, against a server of known behaviour."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from aiohttp import web
from bench.peers import arrival
from bench.peers.arrival import arriving, gaps
from bench.peers.plan import ARRIVAL, SCENARIOS
from bench.peers.process import ProgramError
from tests.measure.test_bench_serve import Served

from pelton.measure.bench.client import Target

HELD_SECONDS = 0.3
(SCENARIO,) = (scenario for scenario in SCENARIOS if scenario.kind == ARRIVAL)
PROMPTS = ["w " * 200, "v " * 200, "u " * 7000]


class Holding(Served):
    """Answers nobody else while it computes a long prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if len((await request.json())["prompt"].split()) > 1000:
            self.gate.clear()
            await asyncio.sleep(HELD_SECONDS)
            self.gate.set()
        return await super().answer(request)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holding]:
    monkeypatch.setattr(arrival, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(arrival, "AFTERWARDS_SECONDS", 0.1)
    served = Holding()
    write = web.StreamResponse.write

    async def gated(self: web.StreamResponse, data: bytes) -> None:
        await served.gate.wait()
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", gated)
    served.start()
    yield served
    served.stop()


def test_gaps_that_touch_a_span() -> None:
    assert gaps([0, 1, 3, 6, 7], 2, 4) == [2, 3]
    assert gaps([0, 1], 2, 4) == []
    assert gaps([0, 9], 2, 4) == [9]


def test_what_a_long_prompt_holds_up_shows(server: Holding) -> None:
    target = Target(f"http://127.0.0.1:{server.port}", "m")
    figures = arriving(target, PROMPTS, replace(SCENARIO, output=5000), 20)
    assert figures["itl_p99_ms"] > 0.8 * 1e3 * HELD_SECONDS > figures["quiet_itl_p99_ms"]
    assert figures["ttft_ms"] > 0.9 * 1e3 * HELD_SECONDS
    words = [len(str(body["prompt"]).split()) for body in server.bodies]
    assert words == [arrival.STREAM_WORDS, arrival.STREAM_WORDS, 7000]


def test_answers_that_end_too_early_are_no_measurement(server: Holding) -> None:
    target = Target(f"http://127.0.0.1:{server.port}", "m")
    with pytest.raises(ProgramError, match="ended before"):
        arriving(target, PROMPTS, replace(SCENARIO, output=10), 20)


def test_one_that_takes_too_long_is_told(server: Holding) -> None:
    target = Target(f"http://127.0.0.1:{server.port}", "m")
    with pytest.raises(ProgramError, match="longer than 0.2 s"):
        arriving(target, PROMPTS, replace(SCENARIO, output=5000), 0.2)
