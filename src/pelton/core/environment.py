"""The only place that reads environment variables; every one the package knows is listed here."""

import os
from pathlib import Path

KNOWN = {
    "PELTON_CACHE": "folder for pulled models and derived files (default: ~/.cache/pelton)",
    "PELTON_ISA": "force a CPU path: portable, avx2 or avx512 (default: the best this machine has)",
    "PELTON_THREADS": "number of worker threads (default: allowed cores)",
}


def variable(name: str, default: str = "") -> str:
    """Value of one of the KNOWN variables."""
    if name not in KNOWN:
        raise KeyError(name)
    return os.environ.get(name, default)


def cache_folder() -> Path:
    """Where pulled models and derived files live; made on first use by whoever writes there."""
    chosen = variable("PELTON_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pelton"


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with some variables changed, for a process it starts."""
    return {**os.environ, **changes}
