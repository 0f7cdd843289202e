"""The rules of tests/conftest.py, tried in a pytest run of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CASES = """
import time
import pytest

pytestmark = pytest.mark.slow

@pytest.mark.parametrize("i", range(3))
def test_slow(i):
    time.sleep(1.5)

@pytest.mark.skip(reason="for another reason")
def test_skipped(): ...
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PELTON_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", ["0", "1"])
def test_slow_cases_after_the_time_box_are_skipped_and_counted(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(CASES)
    # 3 seconds: the interpreter of the worker has to start, and at least the last case comes too late.
    result = run(tmp_path, "-rs", "-n", workers, PELTON_SLOW_MINUTES="0.04")
    lines = result.stdout.splitlines()
    counted = [line for line in lines if line.startswith("slow cases: ")]
    ran, left = (int(word) for word in counted[0].split() if word.isdigit())
    assert result.returncode == 0
    assert ran + left == 3 and left >= 1
    assert "time box of the slow tests is used up (PELTON_SLOW_MINUTES=0.04)" in result.stdout
    assert "skipped in" in lines[-1]


def test_without_a_time_box_all_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CASES.replace("1.5", "0"))
    result = run(tmp_path)
    assert result.returncode == 0
    assert "3 passed, 1 skipped" in result.stdout
    assert "slow cases" not in result.stdout


@pytest.mark.parametrize(("required", "status", "word"), [("1", 4, "is absent"), ("", 0, "1 skipped")])
def test_absent_data_skips_or_fails_the_run(tmp_path: Path, required: str, status: int, word: str) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(data): ...\n")
    absent = str(tmp_path / "nothing")
    result = run(tmp_path, PELTON_TEST_DATA=absent, PELTON_REQUIRE_DATA=required)
    assert result.returncode == status
    assert word in result.stdout + result.stderr
