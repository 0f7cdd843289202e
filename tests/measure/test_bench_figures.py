"""Figures of the bench against values worked out by hand."""

import math

import pytest

from pelton.core.clock import SystemClock
from pelton.measure.bench.client import read_stream
from pelton.measure.bench.figures import Timing, parse_goals, result
from pelton.measure.bench.load import Load


def timing(sent: float, pieces: list[float], **more: object) -> Timing:
    made = Timing(sent, pieces, pieces[-1] if pieces else sent, 10, len(pieces))
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_keys_and_values() -> None:
    timings = [timing(0.0, [0.1, 0.2, 0.4]), timing(1.0, [1.3]), timing(2.0, [], error="503: full")]
    table = result(timings, 2.0, (50, 99), {"ttft": 150.0, "itl": 250.0}, 3.6)
    assert table["completed"] == 2 and table["failed"] == 1
    assert table["total_input_tokens"] == 20 and table["total_output_tokens"] == 4
    assert table["request_throughput"] == 1.0 and table["output_throughput"] == 2.0
    assert table["total_token_throughput"] == 12.0
    assert table["mean_ttft_ms"] == pytest.approx(200.0) and table["p50_ttft_ms"] == pytest.approx(200.0)
    assert table["median_itl_ms"] == pytest.approx(150.0) and table["p99_itl_ms"] == pytest.approx(199.0)
    # An answer of one token has no time per further token.
    assert table["mean_tpot_ms"] == pytest.approx(150.0)
    assert table["p99_e2el_ms"] == pytest.approx(399.0)
    assert table["request_goodput"] == 0.5 and table["slo_attainment"] == pytest.approx(1 / 3)
    assert table["good_output_throughput"] == 1.5
    # 3.6 an hour for 2 seconds are 0.002.
    assert table["cost_per_million_output_tokens"] == pytest.approx(500.0)
    assert table["cost_per_million_total_tokens"] == pytest.approx(2000 / 24)
    assert table["cost_per_million_good_output_tokens"] == pytest.approx(2000 / 3)


# What vLLM's calculation gives for a server that generates; its percentiles are those asked for.
SPREAD = {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")}
QUEUE = {
    f"{kind}_{name}_ms"
    for kind in ("mean", "median", "std", "p99")
    for name in ("client_queue_time", "e2el_including_client_queue")
}
THEIRS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s"),
    *("max_concurrent_requests", "rtfx"),
}
OURS = {
    *("total_cached_tokens", "slo_attainment", "good_output_throughput", "cost_per_million_total_tokens"),
    *("cost_per_million_output_tokens", "cost_per_million_good_output_tokens"),
}


@pytest.mark.parametrize("timings", [[], [timing(0.0, [0.1, 0.2])], [timing(0.0, [], error="gone")]])
@pytest.mark.parametrize("asked", [{}, {"goals": {"ttft": 5.0}, "price_per_hour": 1.0}])
def test_the_keys_are_the_same_whatever_happened(timings: list[Timing], asked: dict[str, object]) -> None:
    table = result(timings, 1.0, (99,), **asked)  # type: ignore[arg-type]
    assert table.keys() == SPREAD | QUEUE | THEIRS | OURS
    without = {"request_goodput", "slo_attainment", "good_output_throughput"} | {key for key in OURS if "cost" in key}
    if not asked:
        assert all(table[key] is None for key in without)
    assert table["rtfx"] == 0.0


def test_the_most_pieces_in_a_second_are_counted_from_the_first_request() -> None:
    timings = [timing(10.5, [10.6, 11.4, 11.6]), timing(10.9, [11.45, 12.4, 12.49]), timing(12.0, [], error="gone")]
    assert result(timings, 2.0)["max_output_tokens_per_s"] == 3.0


def test_waiting_at_the_client_is_a_time_of_its_own() -> None:
    table = result([timing(5.0, [5.5], queued=2.0), timing(5.0, [5.5], queued=4.0)], 1.0)
    assert table["mean_client_queue_time_ms"] == pytest.approx(3000.0)
    assert table["mean_e2el_including_client_queue_ms"] == pytest.approx(3500.0)
    assert table["mean_e2el_ms"] == pytest.approx(500.0)


def test_a_goal_on_gaps_is_about_each_requests_own_slowest() -> None:
    steady, stalled = timing(0.0, [0.1, 0.2, 0.3]), timing(0.0, [0.1, 0.2, 1.3])
    assert steady.meets({"itl": 110.0}) and not stalled.meets({"itl": 110.0})
    assert stalled.meets({"tpot": 610.0}) and not stalled.meets({"tpot": 590.0})
    assert stalled.meets({"e2el": 1301.0}) and not stalled.meets({"e2el": 1299.0})


def test_nothing_done_is_no_division_by_zero() -> None:
    table = result([timing(0.0, [], error="gone")], 1.0, (99,), {"ttft": 1.0}, 1.0)
    assert table["completed"] == 0 and table["mean_ttft_ms"] is None and table["p99_itl_ms"] is None
    assert table["cost_per_million_output_tokens"] is None and table["slo_attainment"] == 0.0


def test_requests_at_once() -> None:
    timings = [timing(0.0, [2.0]), timing(1.0, [3.0]), timing(2.5, [4.0])]
    assert result(timings, 4.0)["max_concurrent_requests"] == 2


def test_goals_are_parsed_or_refused() -> None:
    assert parse_goals(["ttft:500", "itl:50.5"]) == {"ttft": 500.0, "itl": 50.5}
    for bad in ("ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:nan", "ttft:inf", "speed:5", "client_queue_time:5"):
        with pytest.raises(ValueError, match="no goal"):
            parse_goals([bad])


def test_moments_follow_the_rate() -> None:
    assert Load().moments(5) == [0.0] * 5
    moments = Load(rate=50.0, seed=3).moments(4000)
    assert moments == sorted(moments) and moments == Load(rate=50.0, seed=3).moments(4000)
    assert moments[-1] == pytest.approx(80.0, rel=0.08)
    smooth, bursty = (Load(rate=50.0, burstiness=b, seed=3).moments(4000) for b in (100.0, 0.2))

    def variation(values: list[float]) -> float:
        gaps = [b - a for a, b in zip(values, values[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean

    assert variation(smooth) < 0.2 < 0.9 < variation(moments) < 1.1 < 1.8 < variation(bursty)


CHAT = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"He"}}]}\n\n: keep-alive\n\ndata: {"choices":[{"delta":{"con',
    b'tent":"llo"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n',
]


def test_a_stream_is_read_with_the_moment_each_event_was_complete() -> None:
    made = Timing(0.0)
    read_stream(made, [(float(place), data) for place, data in enumerate(CHAT)])
    assert made.pieces == [1.0, 2.0] and made.text == "Hello"
    assert (made.input_tokens, made.output_tokens, made.cached_tokens) == (7, 2, 4)
    assert made.ok


def test_a_completion_counts_tokens_without_text() -> None:
    made = Timing(0.0)
    events = [
        b'{"choices":[{"text":""}]}',
        b'{"choices":[{"text":"a"}]}',
        b'{"choices":[{"text":"","finish_reason":"stop"}]}',
    ]
    read_stream(made, [(float(n), b"data: " + event + b"\n\n") for n, event in enumerate(events)])
    assert made.pieces == [0.0, 1.0] and made.output_tokens == 2


def test_an_error_in_the_stream_fails_the_request() -> None:
    made = Timing(0.0)
    read_stream(made, [(1.0, CHAT[1] + CHAT[2]), (2.0, b'data: {"error":{"message":"gone"}}\n\n')])
    assert not made.ok and "gone" in (made.error or "")
    for wrong in (b"data: {\n\n", b"data: [1]\n\n", b'data: {"choices":[3]}\n\n'):
        strange = Timing(0.0)
        read_stream(strange, [(1.0, wrong)])
        assert "none of an OpenAI server" in (strange.error or "")
    empty = Timing(SystemClock().now())
    read_stream(empty, [])
    assert not empty.ok
