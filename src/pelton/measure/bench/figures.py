"""Figures: from the times of single requests to the result table, with vLLM's keys. It measures nothing.

TTFT runs from sending to the first piece of the answer; ITL between pieces of one answer; TPOT from the first to the
last piece, over the tokens behind the first; E2EL from sending to the end. Goodput as in DistServe (arXiv 2401.09670).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

# What a goal can be about.
GOALS = ("ttft", "tpot", "itl", "e2el")
METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
    "client_queue_time": "Client-side Queueing",
    "e2el_including_client_queue": "Queue-inclusive End-to-end Latency",
}
MILLION = 1e6


@dataclass(slots=True)
class Timing:
    """One request in seconds of one clock. `pieces`: when each piece of the answer came.

    `queued`: how long it waited at the client, before it was sent, for others to end.
    """

    sent: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queued: float = 0.0
    text: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.pieces)

    @property
    def ttft(self) -> float:
        return self.pieces[0] - self.sent

    @property
    def e2el(self) -> float:
        return self.pieces[-1] - self.sent

    @property
    def itl(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token: there is nothing to divide."""
        if self.output_tokens < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.output_tokens - 1)

    def meets(self, goals: Mapping[str, float]) -> bool:
        """Whether it keeps every goal in ms. `itl` means the 99th percentile of the request's own gaps."""
        reached = {"ttft": self.ttft, "e2el": self.e2el, "tpot": self.tpot or 0.0}
        reached["itl"] = float(np.percentile(self.itl, 99)) if len(self.pieces) > 1 else 0.0
        return all(reached[name] * 1000 <= limit for name, limit in goals.items())


def result(
    timings: Sequence[Timing],
    duration: float,
    percentiles: Sequence[float] = (99,),
    goals: Mapping[str, float] | None = None,
    price_per_hour: float | None = None,
) -> dict[str, object]:
    """The result table. `duration` in seconds of the whole run, `goals` in ms, the price in any currency.

    What goals or a price are needed for is None without them. `rtfx` is about speech, of which there is none: 0.
    """
    done = [timing for timing in timings if timing.ok]
    tokens_in, tokens_out = sum(t.input_tokens for t in done), sum(t.output_tokens for t in done)
    cached = sum(t.cached_tokens for t in done)
    table: dict[str, object] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(timings) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "total_cached_tokens": cached,
        "request_throughput": len(done) / duration,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        "max_output_tokens_per_s": _most_in_a_second(done),
        "max_concurrent_requests": _most_at_once(timings),
        "rtfx": 0.0,
        "request_goodput": None,
        "slo_attainment": None,
        "good_output_throughput": None,
        "cost_per_million_total_tokens": None,
        "cost_per_million_output_tokens": None,
        "cost_per_million_good_output_tokens": None,
    }
    good_tokens = tokens_out
    if goals:
        good = [timing for timing in done if timing.meets(goals)]
        good_tokens = sum(timing.output_tokens for timing in good)
        table["request_goodput"] = len(good) / duration
        table["slo_attainment"] = len(good) / len(timings) if timings else 0.0
        table["good_output_throughput"] = good_tokens / duration
    if price_per_hour is not None:
        table |= _costs(price_per_hour / 3600, duration, tokens_in + tokens_out, tokens_out, good_tokens)
    values: dict[str, list[float]] = {
        "ttft": [timing.ttft for timing in done],
        "tpot": [timing.tpot for timing in done if timing.tpot is not None],
        "itl": [gap for timing in done for gap in timing.itl],
        "e2el": [timing.e2el for timing in done],
        "client_queue_time": [timing.queued for timing in done],
        "e2el_including_client_queue": [timing.queued + timing.e2el for timing in done],
    }
    for name, seconds in values.items():
        table |= _spread(name, seconds, percentiles)
    return table


def _costs(per_second: float, duration: float, tokens: int, output: int, good: int) -> dict[str, object]:
    """Per million tokens: of all, of the answers' alone, and of those of requests that kept the goals."""
    paid = per_second * duration
    return {
        "cost_per_million_total_tokens": paid * MILLION / tokens if tokens else None,
        "cost_per_million_output_tokens": paid * MILLION / output if output else None,
        "cost_per_million_good_output_tokens": paid * MILLION / good if good else None,
    }


def _spread(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, object]:
    """Mean, median, deviation and percentiles in ms; None where there is nothing."""
    keys = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", *(f"p{p:g}_{name}_ms" for p in percentiles)]
    if not seconds:
        return dict.fromkeys(keys)
    ms = np.array(seconds) * 1000
    figures = [ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, list(percentiles))]
    return {key: float(figure) for key, figure in zip(keys, figures, strict=True)}


def _most_in_a_second(done: Sequence[Timing]) -> float:
    """The most pieces of answers that came in one second, of the seconds counted from the first request on."""
    start = min((timing.sent for timing in done), default=0.0)
    seconds = Counter(int(moment - start) for timing in done for moment in timing.pieces)
    return float(max(seconds.values(), default=0))


def _most_at_once(timings: Sequence[Timing]) -> int:
    """The largest number of requests that were under way at the same time."""
    moments = [(timing.sent, 1) for timing in timings] + [(timing.ended, -1) for timing in timings]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def parse_goals(words: Sequence[str]) -> dict[str, float]:
    """{"ttft": 500.0} from "ttft:500"; ValueError saying which word cannot be read."""
    goals = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if name not in GOALS or not 0 < limit < math.inf:
            raise ValueError(f"{word!r} is no goal: write NAME:MS with one of {', '.join(GOALS)}, like ttft:500.")
        goals[name] = limit
    return goals
