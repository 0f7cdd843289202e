"""A step op by op beside its limit: python -m bench.step [MODEL] [--runs 5]

For each workload's step, in turns, `pelton program --measure` in a process of its own, since where a process's pages
lie decides how fast it reads. A JSON line is appended to bench/results/step.jsonl: of each group of ops milliseconds
and the time its limit allows, and what is around them.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench import record

NAME = "step"
RUN_SECONDS = 300
# Of a workload the flags of its usual step.
WORKLOADS = {
    "chat": ("--tokens", "1", "--context", "256"),
    "agent": ("--tokens", "1", "--sequences", "8", "--context", "1550"),
    "batch": ("--tokens", "1", "--sequences", "32", "--context", "256"),
    "rag": ("--tokens", "2048"),
}
OTHER = "other"
Run = Mapping[str, Any]


def run_once(model: str, flags: Sequence[str]) -> Run:
    """What one process measures."""
    words = [sys.executable, "-m", "pelton", "program", model, *flags, "--measure", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode:
        raise SystemExit(f"step: {' '.join(words[3:])} failed: {done.stderr.strip().splitlines()[-1]}")
    found: Run = json.loads(done.stdout)
    return found


def group_of(op: Run) -> str:
    """Ops of all layers that do the same: products by the matrices they read."""
    if op["kind"] == "linear":
        return ", ".join(name.split(":")[0].removesuffix(".weight").split(".")[-1] for name in op["weights"])
    return op["kind"] if op["kind"] in ("attend", "head") else OTHER


def figures_of(run: Run) -> dict[str, dict[str, float]]:
    """For each group, and for the step, milliseconds and what its bytes and products take at least."""
    found: dict[str, dict[str, float]] = {}
    for op in run["ops"]:
        one = found.setdefault(group_of(op), {"ms": 0.0, "limit_ms": 0.0})
        one["ms"] += 1000 * op["seconds"]
        one["limit_ms"] += 1000 * op["limit_seconds"]
    found["step"] = {"ms": 1000 * run["step_seconds"], "limit_ms": 1000 * run["limit_seconds"]}
    for part in ("waiting", "around", "python"):
        found[part] = {"ms": 1000 * run[f"{part}_seconds"], "limit_ms": 0.0}
    return found


def medians(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Of several processes: the median of each time, of the step its extremes too."""
    found = {
        name: {
            "ms": round(statistics.median(run[name]["ms"] for run in runs), 4),
            "limit_ms": round(statistics.median(run[name]["limit_ms"] for run in runs), 4),
        }
        for name in runs[0]
    }
    times = [run["step"]["ms"] for run in runs]
    found["step"] |= {"min_ms": round(min(times), 4), "max_ms": round(max(times), 4), "runs": len(runs)}
    return found


def main() -> None:
    given = record.parser(__doc__).parse_args()
    before = record.machine()
    record.probe(given)
    taken: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in WORKLOADS}
    for number in range(given.runs):
        for name, words in WORKLOADS.items():
            taken[name].append(figures_of(run_once(given.model, words)))
        print(f"run {number + 1} of {given.runs}", file=sys.stderr)
    formats = ", ".join(sorted(run_once(given.model, WORKLOADS["chat"])["packed_weight_bytes"]))
    figures: dict[str, object] = {}
    for name, runs in taken.items():
        figures[name] = row = medians(runs)
        print(f"{formats} {name:6} {row['step']['ms']:9.2f} ms, limit {row['step']['limit_ms']:.2f} ms")
    if not given.dry:
        settings: dict[str, object] = {"formats": formats, "workloads": dict(WORKLOADS), "runs": given.runs}
        record.keep(NAME, settings, figures, before)


if __name__ == "__main__":
    main()
