"""Load: when each request is sent. All at once, at a rate with chosen burstiness, or as many at a time as allowed.

Invariant: a turn of a conversation is sent after the answer to the one before it has come, and with that answer.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from pelton.core.clock import Clock
from pelton.measure.bench.client import Client
from pelton.measure.bench.conversation import History, chains, remembered, spoken
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

    With a limit on concurrency the time a request waits for its turn here is `queued`, and not counted as the server's.
    """
    talks = chains(samples)
    gate = asyncio.Semaphore(load.concurrency or len(talks) or 1)
    start = clock.now()
    due = [start + moment for moment in load.moments(len(samples))]
    timings: dict[int, Timing] = {}

    async def ask(place: int, history: History, asked: float) -> History:
        sample = spoken(samples[place], history)
        timing = timings[place] = await client.ask(sample)
        timing.queued = timing.sent - asked
        return remembered(sample, timing.text)

    async def talk(places: Sequence[int]) -> None:
        """A conversation keeps its place at the gate as long as its next turn is due by the end of the last answer."""
        history: History = ()
        held = False
        try:
            for number, place in enumerate(places):
                if number and not timings[places[number - 1]].ok:
                    timings[place] = _unasked(clock.now())
                    done()
                    continue
                wait = due[place] - clock.now()
                if wait > 0 and held:
                    gate.release()
                    held = False
                await asyncio.sleep(max(0.0, wait))
                asked = clock.now()
                held = held or await gate.acquire()
                history = await ask(place, history, asked)
                done()
        finally:
            if held:
                gate.release()

    await asyncio.gather(*(talk(places) for places in talks))
    return [timings[place] for place in range(len(samples))], clock.now() - start


def _unasked(now: float) -> Timing:
    return Timing(now, ended=now, error="It was not asked: the turn before it failed.")
