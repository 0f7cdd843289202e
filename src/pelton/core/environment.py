"""The only place that reads environment variables.

Those in KNOWN mean something to every command. Beside them `pelton serve` takes each of its settings from PELTON_ and
the setting's name in capitals: PELTON_MAX_NUM_SEQS, PELTON_PORT. An empty variable counts as one that is not set.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from pelton.core.errors import SettingError

PREFIX = "PELTON_"
TEST_PREFIX = "PELTON_TEST_"  # what the test suite reads, and nothing else
SCRIPTS = ("PELTON_VENV", "PELTON_SLOW_MINUTES", "PELTON_SLOW_DEADLINE", "PELTON_REQUIRE_DATA")  # and what scripts/ do
API_KEY = "PELTON_API_KEY"  # a setting of the server's that those who ask it read too
KNOWN = {
    "PELTON_BENCH_DATA": "folder of the data sets that `pelton bench` builds workloads from, as --data",
    "PELTON_CACHE": "folder for pulled models and derived files (default: ~/.cache/pelton)",
    "PELTON_ISA": "force a CPU path: portable, avx2, avx512, avx512_vnni, avx512_bf16, amx or neon (default: the best)",
    "PELTON_THREADS": "number of worker threads (default: allowed cores)",
}


def variable(name: str, default: str = "") -> str:
    """Value of one of the KNOWN variables."""
    if name not in KNOWN:
        raise KeyError(name)
    return os.environ.get(name, default)


def setting_variables(settings: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Setting -> (variable, its value), for those of the settings that the environment sets."""
    found = {}
    for setting in settings:
        name = PREFIX + setting.upper()
        if value := os.environ.get(name):
            found[setting] = (name, value)
    return found


def empty_variables(settings: Iterable[str]) -> list[str]:
    """Variables of those settings that are set to nothing; for some of them that is hardly meant as "not set"."""
    return [name for name in (PREFIX + setting.upper() for setting in settings) if os.environ.get(name) == ""]


def unknown_variables(settings: Iterable[str]) -> list[str]:
    """Variables set that start with PELTON_ and are neither KNOWN nor a setting's, the tests' or the scripts'."""
    read = {*KNOWN, *(PREFIX + setting.upper() for setting in settings)}
    names = (name for name, value in os.environ.items() if name.startswith(PREFIX) and value and name not in read)
    return sorted(name for name in names if not name.startswith(TEST_PREFIX) and name not in SCRIPTS)


def cache_folder() -> Path:
    """Where pulled models and derived files live; made on first use by whoever writes there.

    SettingError where it would be in the home of somebody who has none.
    """
    chosen = variable("PELTON_CACHE")
    if chosen:
        return _expanded(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(base) / "pelton"


def _expanded(folder: str) -> Path:
    """A leading ~ replaced; SettingError where this process has no home."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise SettingError(
            f"There is no home folder for {folder!r}: HOME is not set, and this user has none.",
            "Set PELTON_CACHE to a folder for pulled models and derived files.",
        ) from None


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with some variables changed, for a process it starts."""
    return {**os.environ, **changes}
