"""Sweep: how long requests wait for their first and for their next tokens, by the size of steps and by their number.

One engine, in this process and without a server; as many requests as a cell says are under way at once. Invariant:
every cell is asked the same prompts, and none of them finds anything of another's in the cache.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.core.clock import Clock
from pelton.core.errors import BackendError
from pelton.core.events import RequestFinished, TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.measure.bench.figures import Timing, result

PERCENTILES = (50, 99)
TTFT, ITL = "p99_ttft_ms", "p99_itl_ms"
Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Traffic:
    """`requests` prompts of `input_len` random tokens below `vocab`, each with an answer of `output_len`."""

    requests: int
    input_len: int
    output_len: int
    vocab: int
    seed: int = 0

    def made(self) -> list[Request]:
        """The requests; the time of arrival is their sender's."""
        rng = np.random.default_rng(self.seed)
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=self.output_len, ignore_eos=True)
        prompts = rng.integers(0, self.vocab, (self.requests, self.input_len)).tolist()
        return [
            Request(f"sweep{number}", tuple(prompt), params, frozenset(), self.output_len, arrival=0.0)
            for number, prompt in enumerate(prompts)
        ]


@dataclass(frozen=True, slots=True)
class Cell:
    """A size of step in tokens, and how many requests are under way at once."""

    chunk: int
    concurrency: int


def run_cell(engine: Engine, cell: Cell, traffic: Traffic, clock: Clock) -> Table:
    """The cell's figures, by vLLM's keys; milliseconds. BackendError where a request failed.

    `engine`: idle, built for steps and rows no smaller than the cell's.
    """
    limits = engine.scheduler.limits
    engine.reset_prefix_cache()
    engine.scheduler.limits = replace(limits, max_num_batched_tokens=cell.chunk)
    before = engine.stats.preemptions_total
    try:
        start = clock.now()
        timings = _asked(engine, traffic.made(), cell.concurrency, clock)
        seconds = clock.now() - start
    finally:
        engine.abort_all()
        engine.scheduler.limits = limits
    return {
        "max_num_batched_tokens": cell.chunk,
        "max_concurrency": cell.concurrency,
        "preemptions": engine.stats.preemptions_total - before,
        **result(timings, seconds, PERCENTILES),
    }


def _asked(engine: Engine, requests: Iterable[Request], concurrency: int, clock: Clock) -> list[Timing]:
    """Times of all requests; a new one is sent as soon as one has ended."""
    waiting, timings = deque(requests), dict[str, Timing]()
    under_way: set[str] = set()
    while waiting or under_way:
        while waiting and len(under_way) < concurrency:
            request = replace(waiting.popleft(), arrival=clock.now())
            engine.add_request(request)
            under_way.add(request.request_id)
            timings[request.request_id] = Timing(request.arrival, input_tokens=len(request.prompt_token_ids))
        events, now = engine.step(), clock.now()
        for event in events:
            if isinstance(event, TokensGenerated):
                timing = timings[event.request_id]
                timing.pieces.append(now)
                timing.output_tokens += len(event.tokens)
            elif isinstance(event, RequestFinished):
                if event.error is not None:
                    raise BackendError(f"A request of the sweep failed: {event.error}")
                timings[event.request_id].ended = now
                under_way.discard(event.request_id)
    return list(timings.values())


def on_front(rows: Sequence[Table]) -> list[bool]:
    """Of each cell, whether none of as many requests at once has both waits no longer, and one of them shorter."""
    return [
        not any(
            other["max_concurrency"] == row["max_concurrency"] and _waits(other) != _waits(row)
            for other in rows
            if all(there <= here for there, here in zip(_waits(other), _waits(row), strict=True))
        )
        for row in rows
    ]


def _waits(row: Table) -> tuple[float, float]:
    """99th percentiles to the first and to the next token; 0 where there is no next one."""
    first, following = row[TTFT], row[ITL]
    return float(str(first)), 0.0 if following is None else float(str(following))
