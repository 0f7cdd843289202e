"""What is asked, and the figures of what came: prompts of an exact number of tokens, one client for all servers.

The client, the load and the figures are those of `pelton bench serve` (measure/bench/). Invariant: both sides of a pair
are asked the same prompts, and no prompt is asked twice, so that nothing comes from a cache that must not.
"""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from random import Random

import aiohttp
from bench.peers.arrival import arriving
from bench.peers.plan import ARRIVAL, Scenario
from bench.peers.process import ProgramError

from pelton.core.clock import SystemClock
from pelton.measure.bench.client import Client, Target, read_stream
from pelton.measure.bench.figures import Timing, result
from pelton.measure.bench.load import Load, run_load
from pelton.measure.bench.words import WORDS
from pelton.measure.bench.workload import Sample

NAME = "m"  # of the served model
WAIT_SECONDS = 0.01  # between two tries while a server starts
CUT = "cut"  # among figures: the rate is a bound, as the answer was not whole in time

Figures = dict[str, float]
Encode = Callable[[str], Sequence[int]]


class Prompts:
    """Random words that are one token each, so that the number of words is the number of tokens."""

    def __init__(self, encode: Encode, seed: int = 0) -> None:
        """`encode`: a text's token ids, with what a prompt gets in front; it is measured and left out of the count."""
        self._front = len(encode("")) if encode("") else 0
        self._words = [word for word in WORDS if len(encode(f" {word}")) - self._front == 1]
        if len(self._words) < 2:
            raise ProgramError("the model's tokenizer has too few of the words that prompts are made of")
        self._random = Random(seed)

    def text(self, tokens: int) -> str:
        """One of so many tokens."""
        return "".join(f" {word}" for word in self._random.choices(self._words, k=max(1, tokens - self._front)))

    def of(self, scenario: Scenario) -> list[str]:
        """The next prompts of a scenario; those of one with a prefix begin with the same one."""
        prefix = self.text(scenario.shared) if scenario.shared else ""
        return [prefix + self.text(scenario.prompt) for _ in range(scenario.requests)]


def figures_of(timings: Sequence[Timing], seconds: float) -> Figures:
    """Of one block of requests; ProgramError where one failed."""
    table = result(list(timings), seconds, (50, 99))
    if table["failed"]:
        raise ProgramError(str(next(timing.error for timing in timings if not timing.ok)))
    rates = [1 / timing.tpot for timing in timings if timing.tpot]
    figures = {
        "wall_s": seconds,
        "out_tok_s": _number(table["output_throughput"]),
        "ttft_ms": _number(table["p50_ttft_ms"]),
        "ttft_p99_ms": _number(table["p99_ttft_ms"]),
        "in_tokens": _number(table["total_input_tokens"]),
        "out_tokens": _number(table["total_output_tokens"]),
    }
    if rates:
        figures["decode_tok_s"] = statistics.median(rates)
        figures["itl_p50_ms"] = _number(table["p50_itl_ms"])
        figures["itl_p99_ms"] = _number(table["p99_itl_ms"])
    lengths = figures["in_tokens"] / len(timings)
    if lengths:
        figures["prefill_tok_s"] = lengths / figures["ttft_ms"] * 1000
    return figures


def _number(value: object) -> float:
    return float(str(value))


def decoding_until(url: str, prompt: str, output: int, seconds: float) -> Figures:
    """The rate of one answer of `output` tokens, of which only what came within `seconds` counts. Where it was not
    whole by then, CUT is among the figures and the rate is what it was at most: the next token had still to come.
    """

    async def run() -> Figures:
        clock = SystemClock()
        target = Target(url, NAME, extra={"temperature": 0, "ignore_eos": True})
        path, body = target.body(Sample(output, prompt=prompt))
        stamped: list[tuple[float, bytes]] = []
        timing, whole = Timing(clock.now()), False
        try:
            async with (
                asyncio.timeout(seconds),
                aiohttp.ClientSession() as http,
                http.post(target.url(path), json=body) as reply,
            ):
                reply.raise_for_status()
                async for data in reply.content.iter_any():
                    stamped.append((clock.now(), data))
                whole = True
        except TimeoutError:
            pass  # what came counts
        except aiohttp.ClientError as error:
            raise ProgramError(f"{type(error).__name__}: {error}") from error
        timing.ended = clock.now()
        read_stream(timing, stamped)
        if whole:
            return figures_of([timing], timing.ended - timing.sent)
        since = timing.pieces[0] if timing.pieces else timing.sent
        return {"decode_tok_s": max(1, len(timing.pieces)) / (timing.ended - since), CUT: 1.0}

    return asyncio.run(run())


def served(url: str, prompts: Sequence[str], scenario: Scenario, seconds: float) -> Figures:
    """A block of requests to a server; ProgramError where one fails or takes longer than `seconds`."""
    if scenario.kind == ARRIVAL and len(prompts) == scenario.requests:
        target = Target(url, NAME, extra={"temperature": 0, "ignore_eos": True})
        return arriving(target, prompts, scenario, seconds)

    async def run() -> Figures:
        clock = SystemClock()
        extra: dict[str, object] = {"temperature": 0, "ignore_eos": True}
        samples = [Sample(scenario.output, prompt=prompt) for prompt in prompts]
        async with Client(Target(url, NAME, extra=extra), clock, seconds) as client:
            load = Load(concurrency=scenario.concurrency)
            timings, taken = await run_load(client, samples, load, clock, lambda: None)
        return figures_of(timings, taken)

    return asyncio.run(run())


def until_answer(url: str, prompt: str, given_up: Callable[[], str | None]) -> None:
    """Asks for one token until there is one. ProgramError with the word of `given_up` as soon as it has one."""

    async def run() -> None:
        clock = SystemClock()
        async with Client(Target(url, NAME, extra={"temperature": 0}), clock) as client:
            while True:
                if (await client.ask(Sample(1, prompt=prompt))).ok:
                    return
                if (reason := given_up()) is not None:
                    raise ProgramError(reason)
                await asyncio.sleep(WAIT_SECONDS)

    asyncio.run(run())
