"""Builds the kernels of every instruction set, with the C wrappers of tests/native/cpp, into one library for ctypes.

It is not the extension module: no threads, no executable, no nanobind. There is one library per content of the sources,
kept in the temporary folder, so that only a change compiles anything.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.native.isas import DEFINITIONS, INTEGER_SETS, ISAS, TARGETS
from tests.native.probe import Probe

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src" / "pelton" / "backends" / "cpu" / "native"
# As in CMakeLists.txt: the numbers depend on these.
FLAGS = "-std=c++20 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror -fPIC".split()
COMPILE_TIMEOUT = 900  # seconds
PLAIN_SOURCES = ("available.cpp", "pack/pack.cpp", "threads/fpu.cpp")


class CompileError(Exception):
    """What the compiler said."""


def _commands(compiler: str, folder: Path) -> list[list[str]]:
    """One compiler call per object file."""
    common = [compiler, *FLAGS, f"-I{NATIVE}", f"-I{HERE / 'cpp'}"]
    plain = [NATIVE / name for name in PLAIN_SOURCES] + sorted((HERE / "cpp").glob("*.cpp"))
    commands = [[*common, *DEFINITIONS, "-c", str(path), "-o", str(folder / f"{path.stem}.o")] for path in plain]
    doors = sorted((HERE / "cpp" / "isa").glob("*.cpp"))
    for isa, (kernels, flags) in TARGETS.items():
        own = [*doors, NATIVE / "isa" / "int8.cpp"] if kernels == "kernels" else []
        for source in (*own, NATIVE / "isa" / f"{kernels}.cpp"):
            commands.append([*common, *flags, "-c", str(source), "-o", str(folder / f"isa_{source.stem}_{isa}.o")])
    # The longest first: two of them run at a time.
    return commands[::-1]


def run_all(commands: list[list[str]], at_once: int) -> None:
    waiting, running = list(commands), list[subprocess.Popen[str]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(subprocess.Popen(waiting.pop(0), stderr=subprocess.PIPE, text=True))
        process = running.pop(0)
        _, errors = process.communicate()
        if process.returncode:
            for other in running:
                other.communicate()
            raise CompileError(f"the kernels do not compile:\n{errors}")


def _sources() -> list[Path]:
    return sorted(path for folder in (NATIVE, HERE / "cpp") for path in folder.rglob("*") if path.is_file())


def build(compiler: str) -> Path:
    """The library of the sources as they are, compiled if it is not there yet. Raises CompileError."""
    digest = hashlib.sha256(repr((FLAGS, TARGETS, DEFINITIONS)).encode())
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"pelton-kernel-probe-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest.hexdigest()[:24]}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory() as objects:
                run_all(_commands(compiler, Path(objects)), at_once=2)
                # The plain objects first, as in CMakeLists.txt: of an inline function the linker keeps the first copy.
                every = sorted(Path(objects).glob("*.o"))
                plain = [path for path in every if not path.name.startswith("isa_")]
                by_isa = [path for isa in ISAS for path in every if path.name.endswith(f"_{isa}.o")]
                made = Path(objects) / "probe.so"
                run_all([[compiler, "-shared", *map(str, plain + by_isa), "-o", str(made)]], at_once=1)
                for old in folder.glob("*.so"):
                    old.unlink()
                shutil.move(made, library)
    return library


def find_compiler() -> str | None:
    """The C++ compiler to use, if there is one."""
    return shutil.which("g++") or shutil.which("c++")


def every_probe(library: ctypes.CDLL) -> list[Probe]:
    """One probe per instruction set that this CPU has, the portable one first."""
    available = [Probe(library, isa) for isa in range(len(ISAS))]
    return [probe for probe in available if probe.supported]


def supported_probes(library: ctypes.CDLL) -> list[Probe]:
    """The same without sets that differ from another in their integer products alone."""
    return [probe for probe in every_probe(library) if probe.name not in INTEGER_SETS]
