"""What a long prompt does to answers under way: the gaps between their tokens from its sending to its first token.

Answers are cut once that is known. Invariant: a gap that had not ended then counts as long as it lasted.
"""

import asyncio
from collections.abc import Sequence

import aiohttp
import numpy as np
from bench.peers.plan import Scenario
from bench.peers.process import ProgramError

from pelton.core.clock import SystemClock
from pelton.measure.bench.client import Client, Target, read_stream
from pelton.measure.bench.figures import Timing
from pelton.measure.bench.workload import Sample

STREAM_WORDS = 64  # of the prompts whose answers are under way
QUIET_SECONDS = 2.0  # of all answers together, before the long prompt comes
AFTERWARDS_SECONDS = 1.0  # in which gaps may end
LONG_OUTPUT = 2
Figures = dict[str, float]


def arriving(target: Target, prompts: Sequence[str], scenario: Scenario, seconds: float) -> Figures:
    """Figures of one block: `prompts` but the last are begun, then the last is asked. ProgramError where one fails or
    an answer ends before the long prompt's first token, or all takes longer than `seconds`.
    """
    try:
        return asyncio.run(asyncio.wait_for(_run(target, prompts, scenario), seconds))
    except TimeoutError:
        raise ProgramError(f"the prompt of {scenario.prompt} tokens took longer than {seconds:g} s") from None


async def _run(target: Target, prompts: Sequence[str], scenario: Scenario) -> Figures:
    clock = SystemClock()
    heads = [" ".join(prompt.split()[:STREAM_WORDS]) for prompt in prompts[:-1]]
    streams = [_Stream(target, Sample(scenario.output, prompt=head), clock) for head in heads]
    tasks = [asyncio.create_task(stream.read()) for stream in streams]
    try:
        await asyncio.gather(*(stream.begun.wait() for stream in streams))
        began = clock.now()
        await asyncio.sleep(QUIET_SECONDS)
        async with Client(target, clock) as client:
            long = await client.ask(Sample(LONG_OUTPUT, prompt=prompts[-1]))
        if not long.ok:
            raise ProgramError(f"the long prompt: {long.error}")
        if any(task.done() for task in tasks):
            raise ProgramError("an answer under way ended before the long prompt's first token")
        await asyncio.sleep(AFTERWARDS_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    now = clock.now()
    pieces = [stream.timing().pieces for stream in streams]
    during = [gap for own in pieces for gap in gaps([*own, now], long.sent, long.pieces[0])]
    quiet = [gap for own in pieces for gap in gaps(own, began, long.sent)]
    if not during or not quiet:
        raise ProgramError("no token came while answers were under way")
    return {
        "itl_p99_ms": 1e3 * float(np.percentile(during, 99)),
        "itl_p50_ms": 1e3 * float(np.percentile(during, 50)),
        "quiet_itl_p99_ms": 1e3 * float(np.percentile(quiet, 99)),
        "ttft_ms": 1e3 * long.ttft,
    }


def gaps(pieces: Sequence[float], start: float, end: float) -> list[float]:
    """Between pieces, of those gaps that have a part between `start` and `end`."""
    return [b - a for a, b in zip(pieces, pieces[1:], strict=False) if b > start and a < end]


class _Stream:
    """One answer under way. `begun`: its first bytes came."""

    def __init__(self, target: Target, sample: Sample, clock: SystemClock) -> None:
        self.begun = asyncio.Event()
        self._target = target
        self._sample = sample
        self._clock = clock
        self._stamped: list[tuple[float, bytes]] = []

    async def read(self) -> None:
        path, body = self._target.body(self._sample)
        try:
            async with aiohttp.ClientSession() as http, http.post(self._target.url(path), json=body) as reply:
                reply.raise_for_status()
                async for data in reply.content.iter_any():
                    self._stamped.append((self._clock.now(), data))
                    self.begun.set()
        finally:
            self.begun.set()  # of an answer that failed nobody waits for the beginning

    def timing(self) -> Timing:
        """When its pieces came; ProgramError where they are none of an answer."""
        timing = Timing(0.0)
        read_stream(timing, self._stamped)
        if timing.error is not None:
            raise ProgramError(timing.error)
        return timing
