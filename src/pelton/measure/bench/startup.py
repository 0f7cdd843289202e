"""Bench of the start: a fresh process from its beginning to the first token, cold and warm, and its peak memory.

Cold: with an empty cache of derived files. The system's own cache of files cannot be emptied without privileges, so the
weights come from memory in both cases.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from pelton.core.clock import Clock
from pelton.core.environment import child_environment
from pelton.core.errors import BackendError

PROMPT = "The capital of France is"
PERCENTILES = (50, 90, 99)


def startup(
    path: str, cold: int, warm: int, clock: Clock, done: Callable[[], None], flags: Sequence[str] = ()
) -> dict[str, object]:
    """Seconds to the first byte of an answer, with vLLM's keys, and the largest resident set in bytes."""
    table: dict[str, object] = {}
    peak = 0
    with tempfile.TemporaryDirectory(prefix="pelton-startup-") as cache:
        for kind, count in (("cold", cold), ("warm", warm)):
            taken = []
            for number in range(count + (kind == "warm")):
                folder = os.path.join(cache, str(number) if kind == "cold" else "warm")
                seconds, resident = _run_once(path, folder, clock, flags)
                peak = max(peak, resident)
                if kind == "cold" or number:  # the first warm one makes the derived files
                    taken.append(seconds)
                done()
            table |= _figures(kind, taken)
    return {**table, "peak_resident_bytes": peak}


def _figures(kind: str, taken: list[float]) -> dict[str, object]:
    if not taken:
        return {}
    values = np.percentile(taken, PERCENTILES)
    return {
        f"avg_{kind}_startup_time": float(np.mean(taken)),
        f"{kind}_startup_times": taken,
        f"{kind}_startup_percentiles": {str(at): float(v) for at, v in zip(PERCENTILES, values, strict=True)},
    }


def _run_once(path: str, cache: str, clock: Clock, flags: Sequence[str]) -> tuple[float, int]:
    """(seconds to the first byte, peak bytes) of one `pelton complete`; BackendError where it fails."""
    words = [sys.executable, "-m", "pelton", "complete", "--model", path, PROMPT, "--temperature", "0"]
    words += ["--max-tokens", "1", "--ignore-eos", *flags]
    start = clock.now()
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment(PELTON_CACHE=cache)
    )
    assert child.stdout is not None and child.stderr is not None
    first = child.stdout.read(1)
    seconds = clock.now() - start
    child.stdout.read()
    said = child.stderr.read().decode("utf-8", "replace").strip()
    child.stdout.close()
    child.stderr.close()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not first:
        raise BackendError(f"pelton complete ended with {child.returncode}: {said}")
    return seconds, usage.ru_maxrss * 1024
