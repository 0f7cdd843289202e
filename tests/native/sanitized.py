"""Builds standalone programs of the native sources with a sanitizer, an object per content, and runs them.

What it is not: a test. Invariant: an object is compiled again only when what the compiler sees of it has changed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.native.isas import DEFINITIONS, TARGETS

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src" / "pelton" / "backends" / "cpu" / "native"
PROGRAMS = HERE / "cpp" / "sanitize"
# As in CMakeLists.txt, but for the optimisation. gcc warns of what sanitizers make of code.
FLAGS = "-std=c++20 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -fno-trapping-math -w".split()
# AddressSanitizer sees null and what is out of an object, too; looking twice makes code that compiles for minutes.
ADDRESS = (
    "-fsanitize=address,undefined -fno-sanitize=null,object-size,vptr,pointer-overflow -fno-sanitize-recover=all "
    "--param asan-instrumentation-with-call-threshold=0"
).split()
THREAD = ["-fsanitize=thread"]
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
COMPILE_TIMEOUT, RUN_TIMEOUT = 1200, 600  # seconds
AT_ONCE = 2  # compilers


@dataclass(frozen=True)
class Unit:
    """A source with flags of its own, so that one source can be there for several instruction sets."""

    source: Path
    flags: tuple[str, ...] = ()


@dataclass
class Builder:
    """Programs with one sanitizer, or with `sanitizer` empty none."""

    compiler: str
    sanitizer: Sequence[str]
    folder: Path
    common: Sequence[str] = field(default_factory=lambda: [*FLAGS, f"-I{NATIVE}", f"-I{HERE / 'cpp'}"])

    def program(self, name: str, units: Sequence[Unit]) -> Path:
        """The linked program; the test fails with the compiler's words where there is none."""
        with locked(self.folder):
            objects = self._objects(units)
            digest = hashlib.sha256(repr([path.name for path in objects]).encode()).hexdigest()[:16]
            program = self.folder / f"{name}-{digest}"
            if not program.exists():
                part = program.with_suffix(".part")
                words = [self.compiler, *self.sanitizer, "-pthread", *map(str, objects), "-o", str(part)]
                _run([words])
                part.rename(program)
            _forget(self.folder, {program.name, *(path.name for path in objects)})
        return program

    def _objects(self, units: Sequence[Unit]) -> list[Path]:
        objects, commands, parts = [], [], []
        for unit in units:
            words = [self.compiler, *self.common, "-pthread", *self.sanitizer, *unit.flags]
            seen = subprocess.run([*words, "-E", "-P", str(unit.source)], capture_output=True, timeout=COMPILE_TIMEOUT)
            if seen.returncode:
                pytest.fail(f"{unit.source.name} does not compile:\n{seen.stderr.decode(errors='replace')[:4000]}")
            key = hashlib.sha256(repr(words).encode() + seen.stdout).hexdigest()[:24]
            made = self.folder / f"{unit.source.stem}-{key}.o"
            objects.append(made)
            if not made.exists():
                part = made.with_suffix(".part")
                commands.append([*words, "-c", str(unit.source), "-o", str(part)])
                parts.append((part, made))
        _run(commands)
        for part, made in parts:
            part.rename(made)
        return objects


def _run(commands: Sequence[Sequence[str]]) -> None:
    waiting, running = list(commands), list[subprocess.Popen[str]]()
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(subprocess.Popen(waiting.pop(0), stderr=subprocess.PIPE, text=True))
        process = running.pop(0)
        _, errors = process.communicate(timeout=COMPILE_TIMEOUT)
        if process.returncode:
            for other in running:
                other.communicate()
            pytest.fail(f"a program does not compile:\n{errors[:4000]}")


def _forget(folder: Path, kept: set[str]) -> None:
    """Files of sources that have changed since: those that nobody has used for a week."""
    for path in folder.iterdir():
        if path.name in kept:
            os.utime(path)
        elif path.suffix != ".lock" and path.stat().st_mtime < folder.stat().st_mtime - 7 * 86400:
            path.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One builder at a time in a folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / "one.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def builder(sanitizer: Sequence[str]) -> Builder:
    """For one sanitizer; skips where this machine has no compiler, or its library is missing."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = Path(tempfile.gettempdir()) / f"pelton-sanitized-{os.getuid()}"
    made = Builder(compiler, sanitizer, folder)
    with tempfile.TemporaryDirectory() as place:
        source, program = Path(place, "trial.cpp"), Path(place, "trial")
        source.write_text("int main() { return 0; }\n")
        words = [compiler, *sanitizer, str(source), "-o", str(program)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_TIMEOUT)
        if done.returncode:
            pytest.skip(f"{' '.join(sanitizer)}: {done.stderr.strip().splitlines()[-1]}")
        if (ran := run(program)).returncode:
            pytest.skip(f"{' '.join(sanitizer)} does not work here: {ran.stderr.strip()[:300]}")
    return made


def kernel_units() -> list[Unit]:
    """The kernels of every instruction set that this compiler knows, and what is compiled once."""
    units = [Unit(NATIVE / name, tuple(DEFINITIONS)) for name in ("available.cpp", "pack/pack.cpp", "threads/fpu.cpp")]
    for kernels, flags in TARGETS.values():
        if kernels == "kernels":
            units.append(Unit(NATIVE / "isa" / "int8.cpp", tuple(flags)))
        units.append(Unit(NATIVE / "isa" / f"{kernels}.cpp", tuple(flags)))
    return units


def portable_units() -> list[Unit]:
    """The portable kernels alone."""
    flags = tuple(TARGETS["portable"][1])
    return [Unit(NATIVE / "isa" / name, flags) for name in ("kernels.cpp", "int8.cpp")]


def step_units() -> list[Unit]:
    """The executable and its threads."""
    sources = [*sorted((NATIVE / "step").glob("*.cpp")), *sorted((NATIVE / "threads").glob("*.cpp"))]
    return [Unit(path) for path in (*sources, NATIVE / "pack" / "pack.cpp")]


def run(program: Path, *words: str, environment: Mapping[str, str] = OPTIONS) -> subprocess.CompletedProcess[str]:
    """Without address randomisation where that can be had: ThreadSanitizer needs room at fixed addresses."""
    front = ["setarch", "-R"] if shutil.which("setarch") else []
    if front and subprocess.run([*front, "true"], capture_output=True).returncode:
        front = []
    return subprocess.run(
        [*front, str(program), *words],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT,
        env={**os.environ, **environment},
    )
