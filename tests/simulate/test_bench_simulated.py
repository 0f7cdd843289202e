"""The script that holds the simulator against the real engine runs; how near they are depends on the machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_both_are_compared(smollm2: Path, tmp_path: Path) -> None:
    """Eight requests of which most begin alike, at half of what can be served."""
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 500 * n, "input_length": 520 + n, "output_length": 3 + n, "hash_ids": [n // 6, 9 + n]}
        for n in range(8)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "simulated.py"), str(smollm2), "--dry", "--max-model-len", "1024"]
        + ["--trace", str(trace), "--rates", "0.5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert re.search(r"ttft_p50_ms [\d.]+/[\d.]+ = [\d.]+", line)
    # What is decided by lengths and order alone is the same.
    assert re.search(r"hit_rate (0\.[\d]+)/\1 = 1.00, preemptions 0/0", line), line
