"""Figures that a bench quotes of the machine and of the host, from made-up counters: what they are of."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.backends.probed import GIGA, MIB, canned

from pelton.measure.bench import host, limits
from pelton.measure.bench.limits import Moved, run_part, start_part

BEFORE = {"steps": 10, "weight_bytes": 1000, "weight_bytes:q8": 1000, "weight_bytes:q4m": 7, "read:attend": 50,
          "flops:linear": 100, "flops:attend": 10}  # fmt: skip
AFTER = {"steps": 14, "weight_bytes": 1000 + 400 * MIB, "weight_bytes:q8": 1000 + 400 * MIB, "weight_bytes:q4m": 7,
         "read:attend": 50 + 40 * MIB, "flops:linear": 100 + 8000, "flops:attend": 10 + 4000}  # fmt: skip


def test_what_was_moved_is_of_each_step() -> None:
    moved = Moved.between(BEFORE, AFTER, 4)
    assert moved == Moved({"q8": 100 * MIB}, 100 * MIB, 10 * MIB, 3000)
    assert moved.read_bytes == 110 * MIB


def test_a_run_is_told_by_the_size_of_its_steps() -> None:
    """440 MiB in four steps: read at the rate of 110 MiB."""
    part = run_part(canned(), BEFORE, AFTER, 2.0)
    rate = part["step_read_bytes_per_s"]
    assert isinstance(rate, float) and 20 * GIGA < rate < 40 * GIGA
    assert part["run_read_bytes"] == 440 * MIB and part["run_flops"] == 12_000
    assert part["share_of_read_limit"] == pytest.approx(440 * MIB / rate / 2)
    assert part["share_of_matrix_limit"] == pytest.approx(12_000 / (640 * GIGA) / 2)


def test_a_start_quotes_both_rates_of_the_disk() -> None:
    part = start_part(canned())
    assert (part["disk_read_bytes_per_s"], part["disk_write_bytes_per_s"]) == (2 * GIGA, 0.5 * GIGA)


class Model:
    """Stands in for an LLM whose counters are given."""

    def __init__(self) -> None:
        self.backend = 0.0

    def get_metrics(self) -> dict[str, float]:
        return {"backend_seconds_total": self.backend}


def test_host_work_is_between_two_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, work = [100.0], {"worker_ns": 5e9, "wait_ns": 1e9}
    monkeypatch.setattr(host, "cpu_seconds", lambda: cpu[0])
    monkeypatch.setattr(host, "work_done", lambda llm: dict(work))
    model: Any = Model()
    model.backend = 50.0
    seen = host.HostWork(model)
    cpu[0] += 12.0
    work.update(worker_ns=5e9 + 10e9, wait_ns=1e9 + 2e9)
    model.backend += 6.0
    found = seen.figures(8.0)
    assert found == pytest.approx(
        {
            "share": 0.25,
            "backend_seconds": 6.0,
            "cpu_seconds": 12.0,
            "cpu_seconds_outside_kernels": 4.0,
            "worker_wait_seconds": 2.0,
        }
    )
    assert host.host_line(found) == (
        "Host: 25.0% of the time outside the backend; CPU 12.00 s, 4.00 s of it outside kernels; workers waited 2.00 s"
    )


def test_a_share_is_measured_on_the_steps_threads_and_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def share_of_limit(step: Any, size: int, turns: Any, **more: Any) -> str:
        asked.update(size=size, **more)
        return "share"

    counts = iter([BEFORE, {**AFTER, "steps": 18}])
    monkeypatch.setattr(limits, "share_of_limit", share_of_limit)
    monkeypatch.setattr(limits, "work_done", lambda llm: next(counts))
    monkeypatch.setattr(limits, "_tokens", lambda llm, prompt: (token for token in range(1000)))
    clock = SimpleNamespace(now=lambda: 0.0)
    llm: Any = SimpleNamespace(report=SimpleNamespace(threads=3))
    moved, share = limits.decode_share(llm, {"prompt_token_ids": [1]}, clock)
    assert share == "share" and moved == Moved.between(BEFORE, AFTER, limits.WARM_STEPS)
    assert asked["threads"] == 3 and asked["weights"] == moved.weights and asked["size"] == moved.read_bytes
    assert replace(moved, kv_bytes=0).read_bytes == moved.weight_bytes
