"""Whole simulations: one worked by hand, determinism, conservation, and what the engine does under pressure."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.simulate.fixed import MACHINE, FixedSeconds, settings

from pelton.measure.simulate.arrivals import Choice, Prepared
from pelton.measure.simulate.outcome import moments, outcome
from pelton.measure.simulate.simulation import Simulated, simulate
from pelton.measure.simulate.trace import Call, Trace


def second(contexts: object, rows: int) -> float:
    return 1.0


def drawn(count: int, seed: int, piece: int = 64) -> Trace:
    """Requests of which many begin alike."""
    random, calls = Random(seed), []
    for number in range(count):
        prompt = random.randint(1, 300)
        stem = [random.randrange(3), 10 + random.randrange(4), 100 + random.randrange(5)]
        pieces = [*stem, 1000 + number, 5000 + number][: -(-prompt // piece)]
        calls.append(Call(number * 0.4, prompt, random.randint(1, 40), tuple(pieces)))
    return Trace(tuple(calls), piece=piece)


def test_two_requests_worked_by_hand(smollm2: Path) -> None:
    """Steps of a second and 64 tokens. A: 100 tokens at 0, 3 in answer. B: 10 tokens at half a second, 2 in answer.

    0-1: A 64. 1-2: A 36, B 10, and the first token of each. 2-3: the second of each; B ends. 3-4: A's last.
    """
    times = FixedSeconds(second)
    trace = Trace((Call(0.0, 100, 3), Call(0.5, 10, 2)))
    done = simulate(settings(smollm2), trace, Choice(), MACHINE, times)
    assert times.steps == [
        (((0, 64),), 0),
        (((64, 36), (0, 10)), 2),
        (((100, 1), (10, 1)), 2),
        (((101, 1),), 1),
    ]
    a, b = done.replayed.timings
    assert (a.ttft, a.itl, a.e2el, a.tpot) == (2.0, [1.0, 1.0], 4.0, 1.0)
    assert (b.ttft, b.itl, b.e2el, b.tpot) == (1.5, [1.0], 2.5, 1.0)
    table = outcome(done.replayed, done.stats, {"ttft": 1600.0})
    assert table["duration"] == 4.0 and table["output_throughput"] == 5 / 4
    assert table["completed"] == 2 and table["failed"] == 0 and table["slo_attainment"] == 0.5
    assert table["computed_tokens"] == 110 + 2 + 1 and table["steps"] == 4 and table["preemptions"] == 0
    assert table["mean_running"] == (1 + 2 + 2 + 1) / 4 and table["max_waiting"] == 0
    # Behind the calls: 2 blocks, 4 + 1, 4, none.
    assert table["mean_kv_usage"] == pytest.approx((2 + 5 + 4) / 64 / 4) and table["max_kv_usage"] == 5 / 64
    assert table["prefix_hit_rate"] == 0.0 and done.reuse is None
    course = moments(done.replayed.course, 4.0)
    assert [moment.running for moment in course] == [1, 2, 2, 1]
    assert [moment.tokens_per_s for moment in course] == [64, 46, 2, 1]


def test_an_idle_engine_waits_for_the_next_arrival(smollm2: Path) -> None:
    trace = Trace((Call(0.0, 10, 1), Call(100.1, 10, 1), Call(100.1, 10, 1)))
    done = simulate(settings(smollm2), trace, Choice(), MACHINE, FixedSeconds(second))
    assert [timing.pieces for timing in done.replayed.timings] == [[1.0], [101.1], [101.1]]
    assert done.replayed.seconds == pytest.approx(101.1) and done.stats.steps_total == 2
    table = outcome(done.replayed, done.stats, {})
    assert table["mean_running"] == pytest.approx(3 / 101.1), "an idle engine runs nothing"
    course = moments(done.replayed.course, done.replayed.seconds, 10)
    assert [moment.running > 0 for moment in course] == [True, True] and len(course) == 2


def test_what_begins_alike_is_computed_once(smollm2: Path) -> None:
    trace = Trace((Call(0.0, 200, 1, (1, 2)), Call(50.0, 200, 1, (1, 3)), Call(90.0, 200, 1, (4, 5))), piece=128)
    done = simulate(settings(smollm2), trace, Choice(), MACHINE, FixedSeconds(second))
    assert [timing.cached_tokens for timing in done.replayed.timings] == [0, 128, 0]
    assert [timing.ttft for timing in done.replayed.timings] == pytest.approx([4.0, 2.0, 4.0])
    assert done.reuse is not None and done.reuse.found() == 128 and done.reuse.tokens == 600
    off = simulate(settings(smollm2, enable_prefix_caching=False), trace, Choice(), MACHINE, FixedSeconds(second))
    assert [timing.ttft for timing in off.replayed.timings] == pytest.approx([4.0, 4.0, 4.0])


def test_a_series_ends_when_somebody_comes(smollm2: Path) -> None:
    """Steps of a millisecond: several are one call, once it is known how long they take."""
    times = FixedSeconds(lambda contexts, rows: 0.001)
    alone = Trace((Call(0.0, 10, 60),))
    config = settings(smollm2, max_steps_per_call=8)
    done = simulate(config, alone, Choice(), MACHINE, times)
    assert done.stats.steps_total == 60 and len(done.replayed.course) < 15
    assert done.replayed.timings[0].output_tokens == 60 and done.replayed.seconds == pytest.approx(0.06)
    joined = simulate(config, Trace((*alone.calls, Call(0.0205, 10, 5))), Choice(), MACHINE, times)
    assert joined.replayed.timings[1].ttft == pytest.approx(0.0015), "the end of a step, and its own"


def test_the_engines_own_time_counts_once_a_call(smollm2: Path) -> None:
    done = simulate(settings(smollm2), Trace((Call(0.0, 10, 5),)), Choice(), MACHINE, FixedSeconds(second, around=0.25))
    assert done.replayed.seconds == pytest.approx(5 * 1.25) and done.stats.backend_seconds_total == 5.0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("blocks", [64, 18])
def test_nothing_is_lost_and_the_same_comes_again(smollm2: Path, policy: str, blocks: int) -> None:
    config = settings(smollm2, max_num_seqs=6, num_blocks=blocks, scheduling_policy=policy, max_steps_per_call=4)

    def run() -> Simulated:
        times = FixedSeconds(lambda contexts, rows: 0.002 + 0.0001 * sum(count for _, count in contexts))
        return simulate(config, drawn(40, seed=3), Choice(rate=20.0), MACHINE, times)

    done, again = run(), run()
    assert done.replayed.timings == again.replayed.timings and done.replayed.course == again.replayed.course
    arrivals, timings = done.prepared.arrivals, done.replayed.timings
    assert all(
        timing.ok and timing.output_tokens == arrival.output for arrival, timing in zip(arrivals, timings, strict=True)
    )
    assert all(timing.pieces[0] > arrival.at for arrival, timing in zip(arrivals, timings, strict=True))
    stats = done.stats
    assert (stats.running, stats.waiting, stats.held_blocks) == (0, 0, 0)
    # What is computed: each prompt's tokens that were not found, and each answer's but its last.
    least = sum(a.prompt - t.cached_tokens + a.output - 1 for a, t in zip(arrivals, timings, strict=True))
    assert stats.computed_tokens_total == least or (stats.preemptions_total and stats.computed_tokens_total > least)
    assert sum(done.replayed.course.tokens) == stats.computed_tokens_total
    assert stats.prefix_queries_total == sum(arrival.prompt for arrival in arrivals)
    assert stats.prefix_hits_total == sum(timing.cached_tokens for timing in timings) > 0
    if blocks == 18:
        assert stats.preemptions_total or stats.prefix_evictions_total


def test_ends_are_told_as_they_come(smollm2: Path) -> None:
    told: list[int] = []
    trace, prompts = drawn(12, seed=1), list[int]()

    def started(prepared: Prepared) -> Callable[[int], object]:
        prompts.extend(arrival.prompt for arrival in prepared.arrivals)
        return told.append

    simulate(settings(smollm2), trace, Choice(), MACHINE, FixedSeconds(second), started)
    assert sum(told) == 12 and min(told) > 0 and prompts == [call.prompt for call in trace.calls]


def test_parts_of_the_course_add_up(smollm2: Path) -> None:
    done = simulate(
        settings(smollm2, max_num_seqs=4), drawn(30, seed=5), Choice(rate=5.0), MACHINE,
        FixedSeconds(lambda contexts, rows: 0.05),
    )  # fmt: skip
    seconds, table = done.replayed.seconds, outcome(done.replayed, done.stats, {})
    for bins in (1, 7, 120):
        course = moments(done.replayed.course, seconds, bins)
        width = seconds / len(course)
        assert len(course) == min(bins, len(done.replayed.course))
        assert sum(m.running for m in course) * width / seconds == pytest.approx(table["mean_running"])
        assert sum(m.kv_usage for m in course) * width / seconds == pytest.approx(table["mean_kv_usage"])
        assert sum(m.tokens_per_s for m in course) * width == pytest.approx(done.stats.computed_tokens_total)
        assert max(m.waiting for m in course) == table["max_waiting"]


class Copies(FixedSeconds):
    """Bytes that are copied take time, too."""

    def __init__(self, byte: float) -> None:
        super().__init__(lambda contexts, rows: 0.01 + 0.001 * sum(count for _, count in contexts))
        self.byte = byte

    def copying(self, count: int) -> float:
        return count * self.byte


def crowd(smollm2: Path, mode: str, byte: float, count: int = 6) -> tuple[Simulated, Copies]:
    """Six at once, where there is room for two: the later ones are preempted."""
    config = settings(
        smollm2, max_num_seqs=6, num_blocks=18, preemption_mode=mode, partial_prefix_blocks=False, itl_target_ms=None
    )
    times = Copies(byte)
    return simulate(config, Trace(tuple(Call(0.0, 60, 200) for _ in range(count))), Choice(), MACHINE, times), times


def test_what_is_swapped_takes_the_time_of_its_bytes(smollm2: Path) -> None:
    (free, _), (dear, times) = crowd(smollm2, "swap", 0.0), crowd(smollm2, "swap", 1e-7)
    assert free.stats.swaps_total == dear.stats.swaps_total == dear.stats.preemptions_total > 0
    moved = dear.stats.saved_blocks_total + dear.stats.loaded_blocks_total
    assert moved > 2 * dear.stats.swaps_total > 0
    computing = sum(0.01 + 0.001 * sum(count for _, count in contexts) for contexts, _ in times.steps)
    copying = moved * dear.report.kv_block_bytes * 1e-7
    assert dear.stats.backend_seconds_total == pytest.approx(computing + copying)
    assert dear.replayed.seconds == pytest.approx(free.replayed.seconds + copying)
    assert outcome(dear.replayed, dear.stats, {})["swaps"] == dear.stats.swaps_total


def test_what_takes_less_time_is_simulated_too(smollm2: Path) -> None:
    """A block takes a millisecond to copy, or more than a minute; its tokens are computed in 0.04 s."""
    cheap, dear = (crowd(smollm2, "auto", byte, 24)[0].stats for byte in (1e-9, 1e-4))
    assert cheap.swaps_total == cheap.preemptions_total > 0
    assert 0 < dear.swaps_total < dear.preemptions_total, "the rate is learned from the first ones"
