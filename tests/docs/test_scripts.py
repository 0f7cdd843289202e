"""The examples and the bench scripts run, and what they keep is complete. No figure is judged."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.serve.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Water falls, the wheel turns, the mill grinds the corn. " * 8


def run(script: str, *words: str) -> str:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_offline_example(smollm2: Path) -> None:
    shown = run("examples/offline.py", str(smollm2))
    assert "Paris" in shown and shown.count("->") == 4


def test_client_example(smollm2: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, str(smollm2)) as server:
        shown = run("examples/client.py", f"{server.url}/v1")
    assert "log-probability of" in shown and "24 tokens" in shown
    # Two of the three that begin alike find what the first one computes, which finds what a chat begins with at most.
    assert sum(int(found) < 32 for found in re.findall(r"\((\d+) of \d+ prompt tokens", shown)) == 1


def test_startup(smollm2: Path) -> None:
    shown = run("bench/startup.py", "--dry", "--runs", "1", "--tokens", "2")
    assert "start to first token" in shown and "peak memory" in shown


@pytest.mark.parametrize(("requests", "figure"), [("1", "decode_tok_s"), ("3", "total_tok_s")])
def test_decode(smollm2: Path, requests: str, figure: str) -> None:
    shown = run("bench/decode.py", "--dry", "--runs", "1", "--requests", requests, "--prompt", "8", "--output", "4")
    assert figure in shown


@pytest.mark.slow
def test_kl_in_fp32_is_almost_nothing(smollm2: Path, tmp_path: Path) -> None:
    """That it is says that oracle, weights and positions fit together; a wrong one gives whole nats."""
    (tmp_path / "text").write_text(TEXT)
    words = ("--text", str(tmp_path / "text"), "--tokens", "60", "--window", "40", "--dtype", "float32")
    shown = run("bench/kl.py", "--dry", *words)
    mean = float(shown.split("pelton")[1].split()[1])
    assert 0 <= abs(mean) < 1e-6


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    record.keep("trial", {"model": "x"}, {"seconds": record.summary([3.0, 1.0, 2.0])}, record.machine())
    record.keep("trial", {"model": "y"}, {}, record.machine(), {"isa": "z"})
    first, second = map(json.loads, (tmp_path / "results" / "trial.jsonl").read_text().splitlines())
    assert first["figures"] == {"seconds": {"median": 2.0, "min": 1.0, "max": 3.0, "runs": 3}}
    assert second["settings"] == {"model": "y"}
    assert {"cpu", "cores", "isa", "memory_gib", "load_before"} == set(first["machine"])
    assert first["probe"] is None and second["probe"] == {"isa": "z"}
    assert {"date", "commit", "versions", "machine", "settings", "figures", "probe"} == set(first)
    assert os.uname().nodename not in json.dumps(first)


def test_schedules_of_several_seeds_add_up() -> None:
    from bench.verify import figures, total

    told = {"schedules": 3, "answers": 9, "tokens": 90, "steps": 40, "seconds": 1.5, "passed": True, "isa": "x"}
    kept = figures({**told, "cells": [{}, {}], "events": {"steps": 40}, "differences": [], "others": 0})
    assert kept == {**{name: told[name] for name in told if name != "isa"}, "cells": 2} | {
        "events": {"steps": 40},
        "differences": [],
    }
    settings = {"model": "m", "dtype": "bfloat16"}
    lines = [{"settings": {**settings, "seed": seed}, "figures": kept} for seed in (0, 1, 0)]
    lines[2]["figures"] = {**kept, "schedules": 5, "answers": 20, "passed": False}
    (line,) = total("\n".join(map(json.dumps, lines)))
    assert line == "m bfloat16: 8 schedules, 29 answers, 180 tokens, 1 of 2 seeds failed"
