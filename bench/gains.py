"""What techniques gain here, kept: `pelton bench baselines` and `pelton bench sweep` run, and their figures recorded.

python -m bench.gains baselines|sweep [FLAGS of that command]

Appends a line to bench/results/baselines.jsonl or sweep.jsonl, of which `python -m bench.peers.table` makes tables.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import record
from bench.scenarios import PELTON

COMMANDS = ("baselines", "sweep")
SWEPT = (
    "max_num_batched_tokens",
    "max_concurrency",
    "p50_ttft_ms",
    "p99_ttft_ms",
    "p50_itl_ms",
    "p99_itl_ms",
    "output_throughput",
    "preemptions",
    "pareto",
)


def main() -> int:
    """Ends as the command does."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    name, flags, before = sys.argv[1], sys.argv[2:], record.machine()
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        command = (sys.executable, "-c", PELTON, "bench", name, *flags, "--output-json", str(told))
        done = subprocess.run(command, check=False)
        if done.returncode:
            return done.returncode
        lines = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    settings: dict[str, object] = {"model": lines[0]["model_id"], "flags": " ".join(flags)}
    record.keep(name, settings, figures(name, lines), before)
    return 0


def figures(name: str, lines: list[dict[str, object]]) -> dict[str, object]:
    """What is kept of the command's JSON lines: all of its gains, or of each cell of the sweep what the table tells."""
    if name == "baselines":
        return {"gains": lines[0]["gains"]}
    return {"cells": [{key: line[key] for key in SWEPT} for line in lines]}


if __name__ == "__main__":
    sys.exit(main())
