"""Load: when each request is sent. All at once, at a rate with chosen burstiness, or as many at a time as allowed."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from pelton.core.clock import Clock
from pelton.measure.bench.client import Client
from pelton.measure.bench.figures import Timing
from pelton.measure.bench.workload import Sample


@dataclass(frozen=True, slots=True)
class Load:
    """`rate`: requests per second, infinite for all at once. `burstiness`: shape of the gamma distribution of the gaps,
    1 is a Poisson process, smaller is burstier. `concurrency`: most under way at once, None for no limit.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    concurrency: int | None = None
    seed: int = 0

    def moments(self, count: int) -> list[float]:
        """When each request is due, in seconds from the start."""
        if math.isinf(self.rate):
            return [0.0] * count
        random = Random(self.seed)
        due, moments = 0.0, []
        for _ in range(count):
            moments.append(due)
            due += random.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
        return moments


async def run_load(
    client: Client, samples: Sequence[Sample], load: Load, clock: Clock, done: Callable[[], None]
) -> tuple[list[Timing], float]:
    """(timings in the order of the samples, seconds of the whole run). `done` is called after each request.

    With a limit on concurrency the time a request waits for its turn here is not counted as the server's.
    """
    gate = asyncio.Semaphore(load.concurrency or len(samples) or 1)
    start = clock.now()

    async def one(sample: Sample, due: float) -> Timing:
        await asyncio.sleep(max(0.0, start + due - clock.now()))
        async with gate:
            timing = await client.ask(sample)
        done()
        return timing

    moments = load.moments(len(samples))
    timings = await asyncio.gather(*(one(sample, due) for sample, due in zip(samples, moments, strict=True)))
    return list(timings), clock.now() - start
