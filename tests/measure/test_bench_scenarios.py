"""bench/scenarios.py: a line for people for each scenario, and a record that says what was measured and where."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from tests.backends.probed import canned
from tests.measure.test_bench_serve import Served

ROOT = Path(__file__).resolve().parents[2]
OTHER = """
import json, sys
out = sys.argv[sys.argv.index("--out") + 1]
open(out, "a").write(json.dumps({"wall_s": 1.0, "out_tok_s": 100.0, "ttft_ms": [5.0, 6.0], "itl_ms": [4.0, 5.0]}))
"""


@pytest.fixture
def scenarios(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    from bench import scenarios

    monkeypatch.setattr(scenarios.record, "RESULTS", tmp_path / "results")
    yield scenarios


def spread(median: float, low: float, high: float) -> dict[str, float]:
    return {"median": median, "min": low, "max": high, "runs": 3}


def test_a_line_for_people(scenarios: ModuleType) -> None:
    figures: dict[str, object] = {
        "out_tok_s": spread(1312.44, 1300.0, 1320.0),
        "ttft_p50_ms": spread(85.0, 80.0, 91.0),
        "itl_p50_ms": spread(20.25, 20.0, 21.0),
        "itl_p99_ms": spread(35.0, 30.0, 40.0),
    }
    alone = (
        "c8     out 1,312.4 [1,300.0-1,320.0] tok/s, TTFT 85.0 [80.0-91.0] ms, "
        "ITL p50 20.2 [20.0-21.0] p99 35.0 [30.0-40.0] ms"
    )
    assert scenarios.line("c8", figures) == alone
    figures["other_client"] = {key: figures[key] for key in ("out_tok_s", "ttft_p50_ms", "itl_p50_ms")}
    figures["ratio_to_other_client"] = {"out_tok_s": spread(1.01, 0.99, 1.02)}
    assert scenarios.line("c8", figures).endswith(
        "ITL p50 20.2 [20.0-21.0] ms; ours to theirs: out 1.010 [0.990-1.020]"
    )


def test_a_run_tells_each_scenario_and_keeps_a_record(
    scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served()
    served.weights = 64 << 20
    served.start()
    monkeypatch.setattr(scenarios.record, "probe", lambda given: canned())
    monkeypatch.setattr(scenarios, "LEAST_TOKENS", 1)

    @contextmanager
    def running(model: str, flags: list[str]) -> Iterator[tuple[str, float]]:
        yield f"http://127.0.0.1:{served.port}", 0.5

    monkeypatch.setattr(scenarios, "server", running)
    monkeypatch.setattr(scenarios, "reset", lambda url: None)
    monkeypatch.setitem(scenarios.SCENARIOS, "c8", scenarios.Scenario("p256", 4, 2, 3))
    (tmp_path / "other.py").write_text(OTHER)
    (tmp_path / "sets.json").write_text(json.dumps({"p256": [f"prompt {n}" for n in range(9)]}))
    words = f"m --only c8 --runs 2 --prompts {tmp_path}/sets.json --client {tmp_path}/other.py"
    monkeypatch.setattr(sys, "argv", ["scenarios.py", *words.split()])
    try:
        scenarios.main()
    finally:
        served.stop()
    told = capsys.readouterr().out
    assert "c8     out " in told and "other client: out 100.0 [100.0-100.0] tok/s" in told and "{" not in told
    (kept,) = [json.loads(text) for text in (tmp_path / "results" / "scenarios.jsonl").read_text().splitlines()]
    assert {"cpu", "cores", "isa", "memory_gib", "load_before"} == kept["machine"].keys()
    assert kept["commit"] and kept["versions"]["pelton"] and kept["settings"]["runs"] == 2
    limits = kept["probe"]
    assert limits["weight_bytes"] == 64 << 20 and limits["share_of_read_limit"]["c8"] > 0 and limits["isa"] == "avx2"
    assert kept["figures"]["c8"]["out_tok_s"]["runs"] == 2 and "ratio_to_other_client" in kept["figures"]["c8"]


def test_no_prompt_is_asked_twice_in_a_run(scenarios: ModuleType) -> None:
    scenario = scenarios.Scenario("p256", 4, 2, 3)
    for run in range(5):
        assert len(set(scenarios.cut({"p256": ["a", "b", "c", "d", "e", "f"]}, scenario, run))) == 4
    with pytest.raises(SystemExit, match="has 3 of p256, and 4 are asked in a run"):
        scenarios.cut({"p256": ["a", "b", "c"]}, scenario, 0)


def test_an_unknown_scenario_is_named(scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
    monkeypatch.setattr(sys, "argv", ["scenarios.py", "--prompts", "absent", "--only", "a,z"])
    with pytest.raises(SystemExit):
        scenarios.main()
    assert "--only: 'z' is none of" in capsys.readouterr().err  # type: ignore[attr-defined]
