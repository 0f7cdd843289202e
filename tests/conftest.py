"""Fixtures and rules for all tests: test data, the default model, and the time box of the slow tests.

Environment variables:
PELTON_TEST_DATA     the folder of test data (default: ../shared/data, seen from the repository root)
PELTON_REQUIRE_DATA  1: without that folder the whole run fails instead of skipping what needs it
PELTON_SLOW_MINUTES  once this much time has passed, the slow tests that are left are skipped (and counted)
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PELTON_TEST_DATA") or ROOT.parent / "shared" / "data")
DEFAULT_MODEL, SECOND_MODEL = "smollm2", "gemma3-270m"

# Wall-clock health checks say more about the machine's other users than about the test.
settings.register_profile(
    "local",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# ---------------------------------------------------------------------------------------------------
# test data and model


def pytest_sessionstart() -> None:
    if os.environ.get("PELTON_REQUIRE_DATA") == "1" and not DATA.is_dir():
        pytest.exit(f"PELTON_REQUIRE_DATA=1, but the test data folder {DATA} is absent", returncode=4)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of test data."""
    if not DATA.is_dir():
        pytest.skip(f"test data folder {DATA} is absent (set PELTON_TEST_DATA)")
    return DATA


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's GGUF file, fetched once per machine."""
    from pelton.checkpoint.fetch.pull import pull

    # Two test processes that need the model at once would both fetch it.
    with open(Path(tempfile.gettempdir()) / f"pelton-tests-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return pull(DEFAULT_MODEL)


def gemma3_file() -> Path:
    """The GGUF file of Gemma 3 270M. Its terms are for a person to accept: only continuous integration does so here,
    and must get it.
    """
    from pelton.checkpoint.fetch.pull import pull
    from pelton.core.config import FetchSection
    from pelton.core.errors import CheckpointError

    accepts = bool(os.environ.get("CI"))
    with open(Path(tempfile.gettempdir()) / f"pelton-gemma3-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return pull(SECOND_MODEL, FetchSection(accept_terms=accepts, offline=not accepts))
        except CheckpointError as error:
            if accepts:
                raise
            pytest.skip(f"nobody has accepted and fetched it (pelton pull {SECOND_MODEL} --accept-terms): {error}")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """See gemma3_file."""
    return gemma3_file()


# ---------------------------------------------------------------------------------------------------
# slow tests: a longer timeout for each, a time box for all

SLOW_TIMEOUT = 600
BOX_USED_UP = "time box of the slow tests is used up"
DEADLINE = "PELTON_SLOW_DEADLINE"  # seconds of the wall clock, inherited by the workers of pytest-xdist


def pytest_configure(config: pytest.Config) -> None:
    minutes = os.environ.get("PELTON_SLOW_MINUTES")
    is_worker = hasattr(config, "workerinput")
    if minutes and not is_worker:
        os.environ[DEADLINE] = str(time.time() + 60 * float(minutes))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


def pytest_runtest_setup(item: pytest.Item) -> None:
    deadline = os.environ.get(DEADLINE)
    if deadline and item.get_closest_marker("slow") and time.time() > float(deadline):
        pytest.skip(f"{BOX_USED_UP} (PELTON_SLOW_MINUTES={os.environ.get('PELTON_SLOW_MINUTES')})")


def _slow_reports(reporter: pytest.TerminalReporter) -> Iterator[tuple[bool, str]]:
    """(ran, node id) of each slow case; a case skipped for another reason is neither run nor left."""
    for outcome in ("passed", "failed", "error", "xfailed", "xpassed", "skipped"):
        for report in reporter.stats.get(outcome, []):
            if "slow" not in getattr(report, "keywords", {}):
                continue
            if outcome != "skipped":
                yield True, report.nodeid
            elif BOX_USED_UP in str(report.longrepr):
                yield False, report.nodeid


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    minutes = os.environ.get("PELTON_SLOW_MINUTES")
    if not minutes:
        return
    cases = set(_slow_reports(terminalreporter))
    left = sum(not ran for ran, _ in cases)
    terminalreporter.write_line(f"slow cases: {len(cases) - left} ran, {left} left over (time box {minutes} minutes)")
