"""The outcome of a replay as one table of figures, with the keys of `pelton bench serve`, and its course over time.

It measures nothing and prints nothing. Invariant: every figure follows from what the replay noted; no clock is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pelton.core.counters import EngineStats
from pelton.measure.bench.figures import result
from pelton.measure.simulate.replay import Course, Replayed

PERCENTILES = (50, 90, 99)
BINS = 120  # of the course
Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Moment:
    """One of equally long parts of the run, from second `start` on: means over its time, and the most that waited.
    Between calls nothing runs.
    """

    start: float
    kv_usage: float
    running: float
    waiting: int
    tokens_per_s: float

    def record(self) -> Table:
        return {
            "start_s": self.start,
            "kv_usage": self.kv_usage,
            "running": self.running,
            "waiting": self.waiting,
            "tokens_per_s": self.tokens_per_s,
        }


def outcome(replayed: Replayed, stats: EngineStats, goals: Mapping[str, float]) -> Table:
    """`stats`: the engine's in the end; `goals` in ms, as for `pelton bench serve --goodput`. A rate is None where
    nothing was asked.
    """
    course, seconds = replayed.course, max(replayed.seconds, 1e-12)
    table = result(replayed.timings, seconds, PERCENTILES, goals or None)
    errors = sorted({timing.error for timing in replayed.timings if timing.error is not None})
    looked_up = stats.prefix_queries_total
    return {
        **table,
        "first_error": errors[0] if errors else None,
        "prefix_hit_rate": stats.prefix_hits_total / looked_up if looked_up else None,
        "prefix_hit_tokens": stats.prefix_hits_total,
        "prefix_queries_tokens": looked_up,
        "prefix_evictions": stats.prefix_evictions_total,
        "computed_tokens": stats.computed_tokens_total,
        "preemptions": stats.preemptions_total,
        "swaps": stats.swaps_total,
        "steps": stats.steps_total,
        "calls": len(course),
        "mean_kv_usage": _over_time(course, course.usage, seconds),
        "max_kv_usage": max(course.usage, default=0.0),
        "mean_running": _over_time(course, course.running, seconds),
        "max_waiting": max(course.waiting, default=0),
        "backend_seconds": stats.backend_seconds_total,
    }


def _over_time(course: Course, values: Sequence[float], seconds: float) -> float:
    """The mean of what holds in calls; between them nobody runs."""
    calls = zip(course.began, course.ended, values, strict=True)
    return sum((ended - began) * value for began, ended, value in calls) / seconds


def moments(course: Course, seconds: float, bins: int = BINS) -> list[Moment]:
    """The course in at most `bins` equal parts; fewer where there were fewer calls. Each call counts in the parts that
    its time falls into.
    """
    count = min(bins, len(course))
    if not count or seconds <= 0:
        return []
    width = seconds / count
    sums = [[0.0, 0.0, 0.0] for _ in range(count)]
    most = [0] * count
    calls = zip(course.began, course.ended, course.usage, course.running, course.waiting, course.tokens, strict=True)
    for began, ended, usage, running, waiting, tokens in calls:
        rate = tokens / (ended - began) if ended > began else 0.0
        place = min(int(began / width), count - 1)
        while True:
            shared = min(ended, seconds if place == count - 1 else (place + 1) * width) - max(began, place * width)
            for at, value in enumerate((usage, running, rate)):
                sums[place][at] += max(shared, 0.0) * value
            most[place] = max(most[place], waiting)
            if place == count - 1 or (place + 1) * width >= ended:
                break
            place += 1
    return [
        Moment(place * width, usage / width, running / width, most[place], tokens / width)
        for place, (usage, running, tokens) in enumerate(sums)
    ]
