"""Metrics: what is counted, and that names, types, labels and buckets are those dashboards ask for."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.exposition import Samples, samples, value

from pelton.core.clock import FakeClock
from pelton.core.config import resolve
from pelton.core.counters import EngineStats
from pelton.core.events import Event, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import CompletionOutput, Request, RequestMetrics, RequestOutput
from pelton.engine.report import StartReport
from pelton.serve.metrics import Metrics
from pelton.serve.metrics.histogram import Histogram, token_edges

REPORT = StartReport(
    "m", 1, "bfloat16", ((65, 4096, None),), 32, 2000, "cpu", "avx2", 2, (("open", 0.5), ("compile", 1.0))
)
# Name -> type, as vLLM's documentation lists them.
VLLM = {
    **dict.fromkeys(
        ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"], "gauge"
    ),
    **dict.fromkeys(["vllm:kv_cache_usage_perc", "vllm:cache_config_info"], "gauge"),
    **dict.fromkeys(
        [
            "vllm:prefix_cache_queries",
            "vllm:prefix_cache_hits",
            "vllm:num_preemptions",
            "vllm:prompt_tokens",
            "vllm:prompt_tokens_cached",
            "vllm:prompt_tokens_by_source",
            "vllm:generation_tokens",
            "vllm:request_success",
            "vllm:admission_rejections",
            "vllm:corrupted_requests",
        ],
        "counter",
    ),
    **dict.fromkeys(
        [
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:request_time_per_output_token_seconds",
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
            "vllm:request_inference_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
            "vllm:request_prompt_tokens",
            "vllm:request_generation_tokens",
            "vllm:request_max_num_generation_tokens",
            "vllm:request_prefill_kv_computed_tokens",
            "vllm:iteration_tokens_total",
            "vllm:request_params_n",
            "vllm:request_params_max_tokens",
            "vllm:request_num_preemptions",
        ],
        "histogram",
    ),
}


class Rig:
    """Metrics with a clock of its own, and requests made by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock(100.0)
        self.metrics = Metrics("small", self.clock)
        self.metrics.ready(resolve("m", {"num_blocks": 65}), REPORT)

    def step(self, *events: Event, **stats: float) -> None:
        self.clock.advance(0.25)
        self.metrics.on_step(EngineStats(**stats), events)  # type: ignore[arg-type]

    def finish(
        self, request: Request, *answers: tuple[int, str], cached: int = 0, error: str | None = None, **times: float
    ) -> None:
        """`answers`: (tokens, finish reason) of each."""
        outputs = [
            CompletionOutput(place, token_ids=[5] * tokens, finish_reason=reason)
            for place, (tokens, reason) in enumerate(answers)
        ]
        metrics = RequestMetrics(request.arrival, **times)
        prompt = list(request.prompt_token_ids)
        output = RequestOutput(request.request_id, None, prompt, outputs, True, 0, metrics, cached, error)
        self.metrics.on_finished(output, request)

    def read(self) -> Samples:
        return samples(self.metrics.render()[0].decode())


def request(name: str = "a", prompt: int = 3, n: int = 1, most: int = 16, arrival: float = 100.0) -> Request:
    params = SamplingParams(n=n, max_tokens=most, seed=1)
    return Request(name, (1,) * prompt, params, frozenset(), most, arrival)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_names_types_and_labels(rig: Rig) -> None:
    rig.finish(request(), (1, "stop"), first_scheduled=100.1, first_token=100.2, finished=100.3)
    text, kind = rig.metrics.render()
    assert kind.startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert {name: families[name].type for name in VLLM} == VLLM
    for name in VLLM:
        for sample in families[name].samples:
            assert sample.labels["engine"] == "0"
            assert name == "vllm:cache_config_info" or sample.labels["model_name"] == "small"
    others = {name for name in families if not name.startswith(("vllm:", "pelton:", "process_"))}
    assert not others


def test_it_can_be_read_before_the_engine_runs() -> None:
    found = samples(Metrics("small").render()[0].decode())
    assert value(found, "vllm:num_requests_running") == 0
    assert not any(name == "vllm:cache_config_info" for name, _ in found)


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("vllm:time_to_first_token_seconds", [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0]),
        ("vllm:inter_token_latency_seconds", [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0]),
        ("vllm:e2e_request_latency_seconds", [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0]),
        ("vllm:iteration_tokens_total", [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]),
        ("vllm:request_params_n", [1, 2, 5, 10, 20]),
        ("vllm:request_num_preemptions", [1, 2, 3, 4, 5, 10, 20]),
        ("vllm:request_prompt_tokens", [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]),
    ],
)
def test_buckets(rig: Rig, name: str, edges: list[float]) -> None:
    found = [float(dict(labels)["le"]) for (sample, labels), _ in rig.read().items() if sample == f"{name}_bucket"]
    assert found[: len(edges)] == edges and found[-1] == float("inf")


def test_state(rig: Rig) -> None:
    rig.step(running=3, waiting=2, kv_blocks=64, held_blocks=16, kv_usage=0.25, cached_blocks=8, kv_waste=0.125,
             spared_blocks=5)  # fmt: skip
    found = rig.read()
    assert value(found, "vllm:num_requests_running") == 3
    assert value(found, "vllm:num_requests_waiting") == 2
    assert value(found, "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    rig.step(waiting=5, deferred=3)
    assert value(rig.read(), "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value(rig.read(), "vllm:num_requests_waiting_by_reason", reason="deferred") == 3
    assert value(found, "vllm:kv_cache_usage_perc") == 0.25
    assert value(found, "pelton:kv_waste_perc") == 0.125
    assert value(found, "pelton:kv_spared_blocks") == 5
    blocks = {state: value(found, "pelton:kv_blocks", state=state) for state in ("held", "cached", "free")}
    assert blocks == {"held": 16, "cached": 8, "free": 40}
    assert value(found, "pelton:start_seconds") == 1.5


def test_tokens_are_counted_as_they_come(rig: Rig) -> None:
    rig.step(RequestScheduled("a"), TokensGenerated("a", (7,)), step_tokens=4, step_seconds=0.02)
    rig.step(TokensGenerated("a", (8,)), step_tokens=1)
    found = rig.read()
    assert value(found, "vllm:generation_tokens_total") == 2
    assert value(found, "vllm:inter_token_latency_seconds_count") == 1
    assert value(found, "vllm:inter_token_latency_seconds_sum") == 0.25
    assert value(found, "vllm:iteration_tokens_total_sum") == 5
    assert value(found, "vllm:prompt_tokens_total") == 0


def test_a_finished_request(rig: Rig) -> None:
    one = request(prompt=40, most=64)
    rig.step(RequestScheduled("a", 32), TokensGenerated("a", (7,)))
    rig.step(RequestPreempted("a"))
    rig.step(
        RequestScheduled("a"), TokensGenerated("a", (8,)), TokensGenerated("a", (9,)), RequestFinished("a", "stop")
    )
    rig.finish(one, (3, "stop"), cached=32, first_scheduled=100.5, first_token=101.0, finished=102.0)
    found = rig.read()
    assert value(found, "vllm:generation_tokens_total") == 3
    assert value(found, "vllm:prompt_tokens_total") == 40
    assert value(found, "vllm:prompt_tokens_cached_total") == 32
    assert value(found, "vllm:prompt_tokens_by_source_total", source="local_compute") == 8
    assert value(found, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert value(found, "vllm:request_success_total", finished_reason="stop") == 1
    sums = {
        "time_to_first_token_seconds": 1.0,
        "e2e_request_latency_seconds": 2.0,
        "request_queue_time_seconds": 0.5,
        "request_inference_time_seconds": 1.5,
        "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 1.0,
        "request_time_per_output_token_seconds": 0.5,
        "request_prompt_tokens": 40,
        "request_generation_tokens": 3,
        "request_prefill_kv_computed_tokens": 8,
        "request_params_n": 1,
        "request_params_max_tokens": 64,
        "request_num_preemptions": 1,
    }
    assert {name: value(found, f"vllm:{name}_sum") for name in sums} == sums
    assert all(value(found, f"vllm:{name}_count") == 1 for name in sums)


def test_several_answers(rig: Rig) -> None:
    rig.step(*(RequestScheduled(name) for name in ("a", "a/1", "a/2")))
    rig.step(*(TokensGenerated(name, (1, 2)) for name in ("a", "a/1", "a/2")))
    assert value(rig.read(), "vllm:generation_tokens_total") == 6
    # A stop string ended the second answer within what came.
    rig.finish(request(n=3), (2, "length"), (1, "stop"), (2, "length"), first_token=100.5)
    found = rig.read()
    assert value(found, "vllm:generation_tokens_total") == 6, "it was told before, and must not fall"
    assert value(found, "vllm:prompt_tokens_total") == 3
    assert value(found, "vllm:request_success_total", finished_reason="length") == 2
    assert value(found, "vllm:request_generation_tokens_count") == 3
    assert value(found, "vllm:request_max_num_generation_tokens_sum") == 2
    rig.step(RequestScheduled("b"), TokensGenerated("b", (1,)), RequestFinished("b", "stop"))
    rig.finish(request("b"), (1, "stop"), first_token=100.5)
    assert value(rig.read(), "vllm:generation_tokens_total") == 6


@pytest.mark.parametrize(("ending", "reason"), [(False, "disconnect"), (True, "shutdown")])
def test_a_client_that_left(rig: Rig, ending: bool, reason: str) -> None:
    if ending:
        rig.metrics.ending()
    rig.step(RequestScheduled("a"), TokensGenerated("a", (1,)))
    rig.finish(request(), (1, "abort"), first_token=100.5)
    # What the engine still tells of it is nobody's.
    rig.step(TokensGenerated("a", (2,)), RequestFinished("a", "abort"))
    found = rig.read()
    assert value(found, "vllm:generation_tokens_total") == 1
    assert value(found, "pelton:aborted_total", reason=reason) == 1
    assert value(found, "vllm:request_success_total", finished_reason="abort") == 1
    rig.finish(request("queued"), (0, "abort"))
    rig.step(RequestScheduled("queued"), TokensGenerated("queued", (2,)), RequestFinished("queued", "abort"))
    found = rig.read()
    assert value(found, "vllm:generation_tokens_total") == 1
    assert value(found, "vllm:prompt_tokens_total") == 3, "that one was not computed"
    # Its name may be used again.
    rig.step(RequestScheduled("queued"), TokensGenerated("queued", (2,)))
    assert value(rig.read(), "vllm:generation_tokens_total") == 2


def test_what_goes_wrong(rig: Rig) -> None:
    rig.metrics.on_rejected("max_num_queued_reqs")
    rig.metrics.on_rejected("restarting")
    rig.finish(request(), (0, "error"), error="The model's logits for this request contain NaN or infinity.")
    rig.finish(request("b"), (0, "error"), error="The engine process died.")
    found = rig.read()
    assert value(found, "vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
    assert value(found, "vllm:admission_rejections_total", reason="restarting") == 1
    assert value(found, "vllm:corrupted_requests_total") == 1
    assert value(found, "vllm:request_success_total", finished_reason="error") == 2
    assert value(found, "vllm:prompt_tokens_total") == 0


def test_totals_go_on_after_a_restart(rig: Rig) -> None:
    rig.step(preemptions_total=2, prefix_queries_total=100, prefix_hits_total=64, steps_total=9)
    rig.metrics.on_restart()
    assert value(rig.read(), "vllm:num_preemptions_total") == 2
    rig.step(preemptions_total=1, prefix_queries_total=10, prefix_hits_total=0, steps_total=3)
    found = rig.read()
    assert value(found, "vllm:num_preemptions_total") == 3
    assert value(found, "vllm:prefix_cache_queries_total") == 110
    assert value(found, "vllm:prefix_cache_hits_total") == 64
    assert value(found, "pelton:steps_total") == 12
    assert value(found, "pelton:engine_restarts_total") == 1


def test_histogram_counts_at_or_below_an_edge() -> None:
    histogram = Histogram((1, 2, 5))
    for seen in (0.5, 1, 1.5, 2, 5, 6):
        histogram.observe(seen)
    (family,) = [histogram.family("x", "x", {"a": "b"})]
    counts = {s.labels["le"]: s.value for s in family.samples if s.name == "x_bucket"}
    assert counts == {"1.0": 2, "2.0": 4, "5.0": 5, "+Inf": 6}
    assert histogram.total == 16 and histogram.count == 6


def test_token_edges() -> None:
    assert token_edges(7) == (1, 2, 5)
    assert token_edges(1000) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def test_every_family_is_documented(rig: Rig) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`((?:vllm|pelton):\w+)", page))
    families = {family.name for family in text_string_to_metric_families(rig.metrics.render()[0].decode())}
    assert named == {name for name in families if not name.startswith("process_")}
