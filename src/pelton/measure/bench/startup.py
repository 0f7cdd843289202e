"""Bench of the start: a fresh process from its beginning to the first token, cold and warm, and its peak memory.

Cold: with an empty cache of derived files. The system's own cache of files cannot be emptied without privileges, so the
weights come from memory in both cases.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pelton.core.clock import Clock
from pelton.core.environment import child_environment
from pelton.core.errors import BackendError

PROMPT = "The capital of France is"
PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class Starts:
    """How many: with an empty cache each, with a cache that is there, and of the latter before they count."""

    cold: int
    warm: int
    warmups: int = 1

    @property
    def all(self) -> int:
        return self.cold + self.warmups + self.warm


def startup(
    path: str, starts: Starts, clock: Clock, done: Callable[[], None], flags: Sequence[str] = ()
) -> dict[str, object]:
    """Seconds to the first byte of an answer, with vLLM's keys, and the largest resident set in bytes.

    The keys of compilation are there and None: nothing is compiled at a start, the kernels come with the package.
    """
    table: dict[str, object] = {}
    peak = 0
    with tempfile.TemporaryDirectory(prefix="pelton-startup-") as cache:
        for kind, count, warmups in (("cold", starts.cold, 0), ("warm", starts.warm, starts.warmups)):
            taken = []
            for number in range(warmups + count):
                folder = os.path.join(cache, str(number) if kind == "cold" else "warm")
                seconds, resident = _run_once(path, folder, clock, flags)
                peak = max(peak, resident)
                if number >= warmups:  # the first warm one makes the derived files
                    taken.append(seconds)
                done()
            table |= _figures(kind, taken)
    return {**table, "peak_resident_bytes": peak}


def _figures(kind: str, taken: list[float]) -> dict[str, object]:
    """None for what no start was measured of."""
    values = np.percentile(taken, PERCENTILES) if taken else [None] * len(PERCENTILES)
    percentiles = {str(at): None if v is None else float(v) for at, v in zip(PERCENTILES, values, strict=True)}
    return {
        f"avg_{kind}_startup_time": float(np.mean(taken)) if taken else None,
        f"{kind}_startup_times": taken,
        f"{kind}_startup_percentiles": percentiles,
        f"avg_{kind}_compilation_time": None,
        f"{kind}_compilation_times": None,
        f"{kind}_compilation_percentiles": None,
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
