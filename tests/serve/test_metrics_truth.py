"""The counters of a real server against what its clients were told."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.exposition import Samples, samples, value
from tests.serve.process import ServerProcess

pytestmark = pytest.mark.dist
PREFIX = "The river runs from the mountains to the sea, and the mill stands where it bends. " * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("serve"), "--max-model-len", "512") as running:
        yield running


def read(server: ServerProcess) -> Samples:
    status, text = server.ask("/metrics")
    assert status == 200
    return samples(text)


def change(before: Samples, after: Samples, name: str, **labels: str) -> float:
    return value(after, name, **labels) - value(before, name, **labels)


def test_counters_are_what_clients_were_told(server: ServerProcess) -> None:
    before = read(server)
    asked: list[dict[str, Any]] = [
        {},
        {"max_tokens": 1},
        {"prompt": PREFIX, "max_tokens": 5},
        {"prompt": PREFIX + "Then", "max_tokens": 5},
        {"n": 3, "temperature": 1.0, "seed": 3},
        {"stop": [" ", "e"], "max_tokens": 60},
        {"prompt": ["One", "Two", "Three"], "max_tokens": 4},
        {"max_tokens": 0, "echo": True},
    ]
    told: list[dict[str, Any]] = [server.complete(**fields) for fields in asked]
    after = read(server)
    usage = [said["usage"] for said in told]
    generated = sum(use["completion_tokens"] for use in usage)
    prompts = sum(use["prompt_tokens"] for use in usage)
    cached = sum(use["prompt_tokens_details"]["cached_tokens"] for use in usage)
    choices = [choice for said in told for choice in said["choices"]]
    assert change(before, after, "vllm:generation_tokens_total") == generated > 20
    assert change(before, after, "vllm:prompt_tokens_total") == prompts
    assert change(before, after, "vllm:prompt_tokens_cached_total") == cached > 0
    assert change(before, after, "vllm:prompt_tokens_by_source_total", source="local_compute") == prompts - cached
    assert change(before, after, "vllm:prefix_cache_hits_total") >= cached
    for reason in ("stop", "length", "abort", "error"):
        ended = sum(choice["finish_reason"] == reason for choice in choices)
        assert change(before, after, "vllm:request_success_total", finished_reason=reason) == ended, reason
    assert change(before, after, "vllm:request_generation_tokens_sum") == generated
    assert change(before, after, "vllm:request_prompt_tokens_sum") == prompts
    requests = len(asked) + 2
    assert change(before, after, "vllm:e2e_request_latency_seconds_count") == requests
    assert change(before, after, "vllm:request_params_n_sum") == requests + 2
    assert value(after, "vllm:num_requests_running") == 0
    assert value(after, "vllm:kv_cache_usage_perc") == 0


def test_a_client_that_leaves_is_counted(server: ServerProcess) -> None:
    before = read(server)
    body = {"prompt": "Count: one, two,", "max_tokens": 400, "ignore_eos": True, "stream": True}
    response = server.open("/v1/completions", body)
    response.readline()
    response.close()
    deadline = time.monotonic() + 20
    while change(before, after := read(server), "pelton:aborted_total", reason="disconnect") < 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert change(before, after, "vllm:request_success_total", finished_reason="abort") == 1
    assert change(before, after, "vllm:generation_tokens_total") < 390
    while value(read(server), "vllm:num_requests_running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
