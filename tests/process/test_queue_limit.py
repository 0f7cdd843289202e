"""Who may wait: nobody is refused where a row is free, and as many wait as may."""

import pytest

from pelton.core.clock import FakeClock
from pelton.core.counters import EngineStats
from pelton.core.errors import OverloadedError
from pelton.engine.process.queue_limit import LONGEST_WAIT, QueueLimit


def refused(limit: QueueLimit, sequences: int = 1) -> OverloadedError | None:
    try:
        limit.check(sequences)
    except OverloadedError as error:
        return error
    limit.sent(sequences)
    return None


def test_rows_and_queue_fill_before_anybody_is_refused() -> None:
    limit = QueueLimit(3, 4, FakeClock())
    assert [refused(limit) is None for _ in range(10)] == [True] * 7 + [False] * 3
    limit.seen(7)
    limit.step(EngineStats(running=4, waiting=3), 4)
    assert refused(limit)
    limit.step(EngineStats(running=4, waiting=2), 1)
    assert refused(limit) is None and refused(limit)
    limit.seen(1)
    limit.step(EngineStats(running=1, waiting=0), 2)
    assert [refused(limit) is None for _ in range(8)] == [True] * 6 + [False] * 2


def test_who_waits_for_memory_while_rows_are_free_counts() -> None:
    limit = QueueLimit(2, 4, FakeClock())
    limit.step(EngineStats(running=1, waiting=2), 0)
    assert refused(limit)


def test_who_waits_for_another_request_while_rows_are_free_does_not_count() -> None:
    """Children of a prompt that is being computed, or requests that begin as it does."""
    limit = QueueLimit(2, 8, FakeClock())
    limit.step(EngineStats(running=1, waiting=7, deferred=7), 1)
    assert [refused(limit) is None for _ in range(10)] == [True] * 9 + [False]
    limit.seen(9)
    limit.step(EngineStats(running=8, waiting=8, deferred=7), 7)
    assert refused(limit) is None and refused(limit)


def test_no_more_may_wait_for_another_request_than_there_are_rows() -> None:
    limit = QueueLimit(2, 8, FakeClock())
    limit.step(EngineStats(running=1, waiting=9, deferred=9), 0)
    assert refused(limit) is None
    limit.seen(1)
    limit.step(EngineStats(running=1, waiting=10, deferred=10), 0)
    error = refused(limit)
    assert error is not None and error.cause.startswith("2 requests wait")


def test_no_limit() -> None:
    limit = QueueLimit(0, 1, FakeClock())
    assert all(refused(limit) is None for _ in range(1000))


def test_more_answers_than_may_wait_are_taken_where_nobody_waits() -> None:
    limit = QueueLimit(2, 4, FakeClock())
    assert refused(limit, 100) is None and refused(limit)


def test_a_new_engine_begins_with_an_empty_queue() -> None:
    limit = QueueLimit(1, 1, FakeClock())
    assert refused(limit) is None and refused(limit) is None and refused(limit)
    limit.reset()
    assert refused(limit) is None


@pytest.mark.parametrize(("between", "after"), [(0.01, 1), (2.0, 16), (30.0, LONGEST_WAIT)])
def test_retry_after_follows_the_pace_of_the_queue(between: float, after: float) -> None:
    clock = FakeClock()
    limit = QueueLimit(8, 1, clock)
    for _ in range(10):
        limit.step(EngineStats(running=1, waiting=8), 1)
        clock.advance(between)
    error = refused(limit)
    assert error is not None and error.retry_after == pytest.approx(after, abs=1)
    assert error.cause == "8 requests wait already, and max_num_queued_reqs is 8."


def test_a_queue_that_stands_still_tells_longer_times_and_a_past_one_none() -> None:
    clock = FakeClock()
    limit = QueueLimit(2, 1, clock)
    limit.step(EngineStats(running=1, waiting=2), 0)
    first = refused(limit)
    clock.advance(10)
    second = refused(limit)
    assert first is not None and second is not None and (first.retry_after, second.retry_after) == (1, 20)
    assert (first.remedy, second.remedy) == ("Try again in 1 second.", "Try again in 20 seconds.")
    limit.step(EngineStats(), 2)
    limit.step(EngineStats(running=1, waiting=2), 0)
    third = refused(limit)
    assert third is not None and third.retry_after == 1
