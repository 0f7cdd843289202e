"""Builds the kernels of every instruction set, with the C wrappers of tests/native/cpp, into one library for ctypes.

It is not the extension module: no threads, no executable, no nanobind. There is one library per content of the sources,
kept in the temporary folder, so that only a change compiles anything.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.native.probe import Probe

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src" / "pelton" / "backends" / "cpu" / "native"
# As in CMakeLists.txt: the numbers depend on these.
FLAGS = "-std=c++20 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror -fPIC".split()
ISA_FLAGS = {
    "portable": [],
    "avx2": "-mavx2 -mfma -mf16c".split(),
    # gcc 12's own header warns of what it leaves undefined on purpose.
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mavx2 -mf16c "
    "-Wno-uninitialized -Wno-maybe-uninitialized".split(),
}
COMPILE_TIMEOUT = 300  # seconds
PLAIN_SOURCES = ("pack.cpp", "fpu.cpp")


def _isas() -> list[str]:
    return list(ISA_FLAGS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]


def _commands(compiler: str, folder: Path) -> list[list[str]]:
    """One compiler call per object file."""
    common = [compiler, *FLAGS, f"-I{NATIVE}"]
    plain = [NATIVE / name for name in PLAIN_SOURCES] + sorted((HERE / "cpp").glob("*.cpp"))
    commands = [[*common, "-c", str(path), "-o", str(folder / f"{path.stem}.o")] for path in plain]
    for isa in _isas():
        define = f"-DPELTON_ISA_{isa.upper()}=1"
        target = ["-c", str(NATIVE / "isa" / "kernels.cpp"), "-o", str(folder / f"kernels_{isa}.o")]
        commands.append([*common, *ISA_FLAGS[isa], define, *target])
    # The longest first: two of them run at a time.
    return commands[::-1]


def _run_all(commands: list[list[str]], at_once: int) -> None:
    waiting, running = list(commands), list[subprocess.Popen[str]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(subprocess.Popen(waiting.pop(0), stderr=subprocess.PIPE, text=True))
        process = running.pop(0)
        _, errors = process.communicate()
        if process.returncode:
            for other in running:
                other.communicate()
            pytest.fail(f"the kernels do not compile:\n{errors}", pytrace=False)


def _library(compiler: str) -> Path:
    sources = sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.inl"), *NATIVE.rglob("*.cpp"), *(HERE / "cpp").glob("*")])
    digest = hashlib.sha256(repr((FLAGS, ISA_FLAGS, platform.machine())).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"pelton-kernel-probe-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest.hexdigest()[:24]}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory() as objects:
                _run_all(_commands(compiler, Path(objects)), at_once=2)
                # The plain objects first, as in CMakeLists.txt: of an inline function the linker keeps the first copy.
                plain = sorted(set(Path(objects).glob("*.o")) - set(Path(objects).glob("kernels_*.o")))
                kernels = [Path(objects) / f"kernels_{isa}.o" for isa in _isas()]
                made = Path(objects) / "probe.so"
                _run_all([[compiler, "-shared", *map(str, plain + kernels), "-o", str(made)]], at_once=1)
                for old in folder.glob("*.so"):
                    old.unlink()
                shutil.move(made, library)
    return library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whichever test comes first waits for the compiler, perhaps on a busy machine.
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(COMPILE_TIMEOUT))


@pytest.fixture(scope="session")
def native_library() -> ctypes.CDLL:
    """The kernels and the wrappers of tests/native/cpp, loaded."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    return ctypes.CDLL(str(_library(compiler)))


@pytest.fixture(scope="session")
def probes(native_library: ctypes.CDLL) -> list[Probe]:
    """One probe per instruction set that this CPU has, the portable one first."""
    available = [Probe(native_library, isa) for isa in range(len(_isas()))]
    return [probe for probe in available if probe.supported]
