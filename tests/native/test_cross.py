"""The kernels of aarch64, portable and NEON, cross-compiled and run under qemu: the same bits as this machine's.

Skipped with the reason where the cross compiler or qemu is missing (Debian: g++-aarch64-linux-gnu and qemu-user).
"""

import ctypes
import shutil
import subprocess

import pytest
from tests.native.library import FLAGS, HERE, NATIVE, PLAIN_SOURCES, run_all
from tests.native.probe import Probe
from tests.numerics.cases import encode, read

COMPILER, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
KINDS = ("exp", "exp_double", "log_double", "silu", "gelu_tanh")
RUN_TIMEOUT = 240  # seconds; qemu takes a few dozen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the cross-compiled program."""
    missing = [name for name in (COMPILER, QEMU) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("cross")
    common = [COMPILER, *FLAGS, f"-I{NATIVE}", f"-I{HERE / 'cpp'}"]
    plain = [NATIVE / name for name in PLAIN_SOURCES] + [HERE / "cpp" / "digest_probe.cpp", HERE / "cross" / "main.cpp"]
    commands = [[*common, "-c", str(path), "-o", str(folder / f"plain_{path.stem}.o")] for path in plain]
    for isa in ("portable", "neon"):
        for path in (
            NATIVE / "isa" / "kernels.cpp",
            NATIVE / "isa" / "int8.cpp",
            HERE / "cpp" / "isa" / "function_probe.cpp",
        ):
            target = ["-c", str(path), "-o", str(folder / f"{path.stem}_{isa}.o")]
            commands.append([*common, f"-DPELTON_ISA_{isa.upper()}=1", *target])
    run_all(commands, at_once=2)
    made = folder / "digests"
    run_all([[COMPILER, "-static", *map(str, sorted(folder.glob("*.o"))), "-o", str(made)]], at_once=1)
    return [QEMU, str(made)]


def run(program: list[str], *words: str, given: str = "") -> str:
    done = subprocess.run(
        [*program, *words], input=given, capture_output=True, text=True, timeout=RUN_TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_kernel_gives_the_bits_of_this_machine(
    program: list[str], native_library: ctypes.CDLL, probes: list[Probe]
) -> None:
    native_library.probe_digests.restype = ctypes.c_char_p
    expected = native_library.probe_digests(0).decode().splitlines()
    assert len(expected) > 50
    for probe in probes[1:]:
        assert native_library.probe_digests(probe.door[1]).decode().splitlines() == expected, probe
    sets = dict(part.split("\n", 1) for part in run(program, "digests").split("isa ")[1:])
    assert set(sets) == {"neon", "portable"}
    for name, lines in sets.items():
        assert lines.splitlines() == expected, name


@pytest.mark.parametrize("kind", KINDS)
def test_vectors(program: list[str], kind: str) -> None:
    for case in read()[kind]:
        given = " ".join(float(x).hex() for x in case["x"])
        assert encode([float.fromhex(word) for word in run(program, kind, given=given).split()]) == encode(case["out"])
