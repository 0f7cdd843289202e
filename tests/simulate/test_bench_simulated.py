"""The script that holds the simulator against the real engine runs; how near they are depends on the machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_both_are_compared(data: Path, smollm2: Path) -> None:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = ["--trace", str(data / "traces" / "mooncake_conversation.jsonl"), "--requests", "12", "--rates", "0.5"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "simulated.py"), str(smollm2), "--dry", "--max-model-len", "512", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert re.search(r"ttft_p50_ms [\d.]+/[\d.]+ = [\d.]+", line)
    # What is decided by lengths alone is the same.
    assert re.search(r"hit_rate ([\d.]+)/\1 = 1.00, preemptions 0/0", line), line
