"""Advice about a prefix cache that finds nothing: when it is given, and when not."""

import logging

import pytest

from pelton.core.clock import FakeClock
from pelton.core.counters import EngineStats
from pelton.serve.metrics.advice import HOUR, CacheAdvice


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "prefix cache" in record.getMessage()]


@pytest.mark.parametrize(("asked", "found", "cached", "seconds", "lines"), [
    (200_000, 1_000, 60, HOUR, 1),
    (200_000, 2_000, 60, HOUR, 0),  # a hundredth is worth something
    (99_999, 0, 60, HOUR, 0),  # too little to judge by
    (200_000, 0, 40, HOUR, 0),  # the memory is not filled
    (200_000, 0, 60, HOUR - 1, 0),
])  # fmt: skip
def test_it_is_given_where_much_is_asked_and_little_found(
    asked: int, found: int, cached: int, seconds: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    advice = CacheAdvice(clock)
    clock.advance(seconds)
    with caplog.at_level(logging.WARNING, "pelton"):
        advice.on_step(EngineStats(kv_blocks=100, cached_blocks=cached, prefix_queries_total=asked,
                                   prefix_hits_total=found), ())  # fmt: skip
    assert len(said(caplog)) == lines
    assert not lines or "0.50 % of 200,000" in said(caplog)[0]


def test_each_hour_is_judged_by_itself_and_a_restart_begins_another(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    advice = CacheAdvice(clock)
    figures = [(200_000, 0, 1), (350_000, 100_000, 0), (360_000, 100_000, 0), (600_000, 100_000, 1)]
    for asked, found, lines in figures:
        clock.advance(HOUR)
        with caplog.at_level(logging.WARNING, "pelton"):
            for _ in range(3):
                advice.on_step(EngineStats(kv_blocks=9, held_blocks=9, prefix_queries_total=asked,
                                           prefix_hits_total=found), ())  # fmt: skip
        assert len(said(caplog)) == lines, asked
        caplog.clear()
    advice.on_restart()
    clock.advance(HOUR / 2)
    advice.on_step(EngineStats(kv_blocks=9, held_blocks=9, prefix_queries_total=500_000), ())
    assert not said(caplog)
