"""`pelton verify`, kept: how many schedules answered alike on which machine, so that runs of several seeds add up.

python -m bench.verify MODEL [FLAGS of that command]
python -m bench.verify --sum

Appends a line to bench/results/verify.jsonl, also of a run that found a difference. `--sum` tells what all lines come
to by model and arithmetic; of a seed, whose schedules are always the same ones, a failed line counts, else the longest.
"""

import json
import subprocess
import sys
from collections import defaultdict

from bench import record
from bench.scenarios import PELTON

KEPT = ("schedules", "answers", "tokens", "steps", "seconds", "passed")


def main() -> int:
    """Ends as the command does."""
    if sys.argv[1:] == ["--sum"]:
        print("\n".join(total(record.RESULTS.joinpath("verify.jsonl").read_text(encoding="utf-8"))))
        return 0
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    model, flags, before = sys.argv[1], sys.argv[2:], record.machine()
    command = (sys.executable, "-c", PELTON, "verify", model, *flags, "--json")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if not done.stdout:
        return done.returncode
    told = json.loads(done.stdout)
    settings = {name: told[name] for name in ("model", "dtype", "backend", "seed")}
    record.keep("verify", {**settings, "flags": " ".join(told_of(flags))}, figures(told), before)
    return done.returncode


def told_of(flags: list[str]) -> list[str]:
    """Without the name of a file, which tells nothing elsewhere."""
    behind = ["", *flags]
    return [word for before, word in zip(behind, flags, strict=False) if "--resume" not in (before, word)]


def figures(told: dict[str, object]) -> dict[str, object]:
    """What is kept of the command's JSON: counts, and the first differences as they are."""
    cells = told["cells"]
    assert isinstance(cells, list)
    return {
        **{name: told[name] for name in KEPT},
        "cells": len(cells),
        "events": told["events"],
        "differences": told["differences"],
    }


def total(lines: str) -> list[str]:
    """A line for each model and arithmetic."""
    runs: dict[tuple[str, str], dict[int, dict[str, int]]] = defaultdict(dict)
    for line in map(json.loads, lines.splitlines()):
        settings, found = line["settings"], line["figures"]
        seeds, seed = runs[settings["model"], settings["dtype"]], settings["seed"]
        failed = seed in seeds and not seeds[seed]["passed"]  # a longer run that passes does not undo it
        if seed not in seeds or not found["passed"] or (not failed and seeds[seed]["schedules"] < found["schedules"]):
            seeds[seed] = found
    return [
        f"{model} {dtype}: {sum(found['schedules'] for found in seeds.values()):,} schedules, "
        f"{sum(found['answers'] for found in seeds.values()):,} answers, "
        f"{sum(found['tokens'] for found in seeds.values()):,} tokens, "
        f"{sum(not found['passed'] for found in seeds.values())} of {len(seeds)} seeds failed"
        for (model, dtype), seeds in sorted(runs.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
