"""What every bench script shares: where and with what it was measured, and one JSON line per figure in bench/results/.

It measures nothing. A line names no host and no path.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy

import pelton
from pelton.backends.cpu.machine import allowed_cores, choose_isa
from pelton.backends.cpu.probe.cached import load, save
from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.backends.cpu.probe.identity import cpu_model, identify
from pelton.backends.cpu.probe.measure import QUICK, measure

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, object]:
    """What decides the figures: the CPU, its allowed cores, the kernels, memory, and how busy it was."""
    return {
        "cpu": cpu_model(),
        "cores": len(allowed_cores()),
        "isa": choose_isa()[0],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    return {"pelton": pelton.__version__, "python": platform.python_version(), "numpy": numpy.__version__}


def commit() -> str:
    """The commit measured, with +changes if files differ from it; "unknown" without git."""
    try:
        found = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench", ":!bench/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found + ("+changes" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def summary(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median and extremes: a single figure says nothing on a shared machine."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "runs": len(values),
    }


def probe(given: argparse.Namespace, threads: int = 0) -> MachineProbe | None:
    """The machine's kept limits, measured quickly now if there are none or they are of a busy machine; None with
    --no-probe.
    """
    if given.no_probe:
        return None
    kept = load(identify(threads))
    if kept is not None and not kept.busy:
        return kept
    print("measuring the machine once, a few seconds ...", file=sys.stderr)
    found = measure(QUICK, threads=threads)
    if kept is None or not found.busy:
        save(found)
    return found


def keep(
    name: str,
    settings: dict[str, object],
    figures: dict[str, object],
    before: dict[str, object],
    probed: dict[str, object] | None = None,
) -> None:
    """Appends a line to bench/results/NAME.jsonl. `before`: machine() as it was before measuring; `probed`: its limits,
    and how near the figures came to them.
    """
    line = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "versions": versions(),
        "machine": before,
        "settings": settings,
        "figures": figures,
        "probe": probed,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the flags that all bench scripts have."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("model", nargs="?", default="smollm2", help="as for pelton complete (default: smollm2)")
    flags.add_argument("--runs", type=int, default=5, help="repetitions (default: 5)")
    flags.add_argument("--no-probe", action="store_true", help="leave the machine's limits out")
    flags.add_argument("--dry", action="store_true", help="print only, keep nothing in bench/results")
    return flags
