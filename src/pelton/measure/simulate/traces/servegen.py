"""Clients as ServeGen describes them: of each its rates and kinds of gaps by windows of ten minutes, and histograms of
lengths by six hours. A description, from which calls are drawn. Paper: arXiv 2505.09999.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate, islice
from random import Random

from pelton.core.errors import SettingError
from pelton.measure.simulate.trace import Call, Source, Trace

WINDOW = 600.0  # seconds
GAMMA, WEIBULL = "Gamma", "Weibull"
DEFAULT_COUNT = 1000
MOST_TOKENS = 1 << 20  # of one prompt: beyond, a histogram is damaged
FORM = "A line has client, windows [[second, rate, cv, kind of gaps, two parameters], ...] and histograms."


@dataclass(frozen=True, slots=True)
class _Lengths:
    """One histogram: values, and the sums of their weights up to each."""

    values: tuple[int, ...]
    sums: tuple[float, ...]

    def draw(self, random: Random) -> int:
        place = bisect_right(self.sums, random.random() * self.sums[-1])
        return self.values[min(place, len(self.values) - 1)]


@dataclass(frozen=True, slots=True)
class _Hours:
    """From second `start` on: histograms whose values together are a prompt, and that of answers."""

    start: float
    prompt: tuple[_Lengths, ...]
    output: _Lengths


@dataclass(frozen=True, slots=True)
class _Client:
    """`windows`: (start, kind of gaps, its two parameters) of those with any requests."""

    name: str
    windows: tuple[tuple[float, str, float, float], ...]
    hours: tuple[_Hours, ...]

    def calls(self, random: Random) -> Iterator[Call]:
        """By time. Each window is a renewal process of its own."""
        for start, kind, first, second in self.windows:
            hours = [one for one in self.hours if one.start <= start] or [self.hours[0]]
            at = start
            while True:
                at += random.gammavariate(first, second) if kind == GAMMA else random.weibullvariate(second, first)
                if at >= start + WINDOW:
                    break
                prompt = sum(one.draw(random) for one in hours[-1].prompt)
                yield Call(at, max(1, prompt), hours[-1].output.draw(random), client=self.name)


class ServeGen:
    """The first calls of the day, DEFAULT_COUNT unless more or fewer are asked for, of all clients together.

    A part (FILE#NAME) takes the clients of one model or one category alone.
    """

    def claims(self, first: str) -> bool:
        return first.lstrip().startswith("{") and '"windows"' in first and '"histograms"' in first

    def read(self, source: Source) -> Trace:
        rows = [(number, _row(source, number, line)) for number, line in source.lines]
        names = {str(row.get(key)) for _, row in rows for key in ("model", "category")}
        if source.part and source.part not in names:
            raise SettingError(f"{source.called} has no {source.part!r}.", f"There are: {', '.join(sorted(names))}.")
        chosen = [
            _client(source, number, row)
            for number, row in rows
            if not source.part or source.part in (row.get("model"), row.get("category"))
        ]
        streams = [client.calls(Random(f"{source.seed}/{client.name}")) for client in chosen if client.hours]
        count = DEFAULT_COUNT if source.count is None else source.count
        calls = tuple(islice(merge(*streams, key=lambda call: call.at), count))
        if not calls:
            raise SettingError(f"{source.called}: nobody asks anything.", FORM)
        first = calls[0].at
        return Trace(tuple(Call(one.at - first, one.prompt, one.output, client=one.client) for one in calls))


def _row(source: Source, number: int, line: str) -> Mapping[str, object]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise source.error(number, f"no JSON: {error}", FORM) from error
    if not isinstance(row, dict):
        raise source.error(number, "no JSON object", FORM)
    return row


def _client(source: Source, number: int, row: Mapping[str, object]) -> _Client:
    windows, histograms = row.get("windows"), row.get("histograms")
    if not isinstance(windows, list) or not isinstance(histograms, dict):
        raise source.error(number, "windows or histograms are missing", FORM)
    name = f"{row.get('model', '')}/{row.get('client', number)}"
    try:
        busy = tuple(found for window in windows if (found := _window(window)) is not None)
        hours = sorted(
            (one for start, tables in histograms.items() if (one := _hours(float(start), tables)) is not None),
            key=lambda hour: hour.start,
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise source.error(number, f"windows or histograms cannot be read ({error})", FORM) from error
    return _Client(name, tuple(sorted(busy)), tuple(hours))


def _window(window: list[object]) -> tuple[float, str, float, float] | None:
    """None for one without requests. The second parameter follows from the rate, and more exactly: of the shortest gaps
    the file's digits say nothing.
    """
    begins, per_second, _, kind, parameter, _ = window
    start, rate, shape = (float(value) for value in (begins, per_second, parameter))  # type: ignore[arg-type]
    if not kind or not rate:
        return None
    if kind not in (GAMMA, WEIBULL) or not all(math.isfinite(one) and one > 0 for one in (rate, shape)):
        raise ValueError(f"no gaps are {kind} {shape:g} at {rate:g} a second")
    return start, str(kind), shape, 1 / (rate * (shape if kind == GAMMA else math.gamma(1 + 1 / shape)))


def _hours(start: float, tables: Mapping[str, object]) -> _Hours | None:
    """None where no request was seen. Of models that take pictures a prompt is its text and all else together."""
    output = _lengths(tables.get("output_tokens"))
    whole = _lengths(tables.get("input_tokens"))
    names = ("text_tokens", "image_tokens", "audio_tokens", "video_tokens")
    parts = [whole] if whole is not None else [_lengths(tables.get(name)) for name in names]
    prompt = tuple(part for part in parts if part is not None)
    return _Hours(start, prompt, output) if prompt and output is not None else None


def _lengths(table: object) -> _Lengths | None:
    if not table:
        return None
    if not isinstance(table, list):
        raise ValueError("a histogram is no list")
    values = tuple(int(value) for value, _ in table)
    weights = [float(weight) for _, weight in table]
    if min(weights) < 0 or not 0 < sum(weights) < math.inf or not all(0 <= value < MOST_TOKENS for value in values):
        raise ValueError("a histogram has weights or lengths that cannot be")
    return _Lengths(values, tuple(accumulate(weights)))
