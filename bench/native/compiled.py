"""Compiles small programs of the kernels' sources with the build's own flags, and says what compiled them.

It measures nothing. Invariant: the flags are those of CMakeLists.txt, so that what is counted is what is shipped.
"""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "src" / "pelton" / "backends" / "cpu" / "native"
FLAGS = "-std=c++20 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math".split()
AVX2 = "-mavx2 -mfma -mf16c -DPELTON_ISA_AVX2=1".split()
AVX512 = (
    "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mavx2 -mf16c -DPELTON_ISA_AVX512=1 "
    "-Wno-uninitialized -Wno-maybe-uninitialized"
).split()
PORTABLE = ["-DPELTON_ISA_PORTABLE=1"]
AMX_EMULATED = ["-DPELTON_ISA_AMX_EMULATED=1"]
COMPILE_SECONDS = 1800


class Missing(Exception):
    """What this machine lacks for a measurement; the words are for people."""


@dataclass(frozen=True)
class Source:
    """A file with flags of its own."""

    path: Path
    flags: Sequence[str] = ()


def kernels(*flags: str) -> list[Source]:
    """The kernels of one instruction set."""
    return [Source(NATIVE / "isa" / name, flags) for name in ("kernels.cpp", "int8.cpp")]


def compiler() -> str:
    """The C++ compiler. Raises Missing."""
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        raise Missing("no C++ compiler")
    return found


def compiler_name() -> str:
    """Such as "g++ 12.2.0": counts of another one are others. Raises Missing."""
    words = compiler()
    said = subprocess.run([words, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{Path(words).name} {said}"


def need_x86() -> None:
    """Raises Missing elsewhere."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Missing(f"a {platform.machine()} has no such kernels")


def compile_program(sources: Sequence[Source], program: Path, *more: str) -> None:
    """Two sources at a time. Raises Missing with the compiler's words."""
    common = [compiler(), *FLAGS, *more, f"-I{NATIVE}", f"-I{HERE}"]
    objects, running = [], list[tuple[Source, subprocess.Popen[str]]]()
    for number, source in enumerate(sources):
        made = program.with_name(f"{program.name}-{number}.o")
        objects.append(str(made))
        if len(running) == 2:
            _finish(*running.pop(0))
        words = [*common, *source.flags, "-c", str(source.path), "-o", str(made)]
        running.append((source, subprocess.Popen(words, stderr=subprocess.PIPE, text=True)))
    for pair in running:
        _finish(*pair)
    done = subprocess.run([compiler(), *objects, "-pthread", "-o", str(program)], capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"{program.name} cannot be linked: {done.stderr[-1000:]}")


def _finish(source: Source, process: "subprocess.Popen[str]") -> None:
    _, said = process.communicate(timeout=COMPILE_SECONDS)
    if process.returncode:
        raise Missing(f"{source.path.name} does not compile: {said[:1000]}")
