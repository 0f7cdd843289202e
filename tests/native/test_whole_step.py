"""A small model's steps through the whole executable give the same bits with the kernels of every instruction set.

Those of AMX on emulated tile registers too; tests/backends/ has more such steps for the sets that this CPU has. And
the steps take no memory from the system.
"""

import subprocess
from pathlib import Path

import pytest
from tests.native.library import FLAGS, HERE, NATIVE, build, find_compiler, run_all
from tests.native.probe import Probe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(probes: list[Probe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects of the executable and of the programs here."""
    compiler, folder = find_compiler(), tmp_path_factory.mktemp("step")
    assert compiler is not None
    programs = [HERE / "cross" / "step.cpp", HERE / "cpp" / "sanitize" / "allocations.cpp"]
    sources = [*programs, NATIVE / "threads" / "pool.cpp", *sorted((NATIVE / "step").glob("*.cpp"))]
    common = [compiler, *FLAGS, "-O1", f"-I{NATIVE}", f"-I{HERE / 'cpp'}"]
    run_all(
        [[*common, "-c", str(path), "-o", str(folder / f"{path.stem}_{path.parent.name}.o")] for path in sources],
        at_once=2,
    )
    return folder


def linked(folder: Path, program: str) -> Path:
    """One of the programs around the kernels that the other tests have compiled."""
    compiler, made = find_compiler(), folder / program
    assert compiler is not None
    library, parts = build(compiler), (program, "pool_threads")
    objects = [path for path in sorted(folder.glob("*.o")) if path.stem in parts or path.stem.endswith("_step")]
    words = [compiler, *map(str, objects), str(library), f"-Wl,-rpath,{library.parent}", "-pthread", "-o", str(made)]
    run_all([words], at_once=1)
    return made


def test_every_set_gives_the_same_logits(folder: Path, probes: list[Probe]) -> None:
    program, found = linked(folder, "step_cross"), {}
    for probe in probes:
        done = subprocess.run(
            [str(program), str(probe.door[1])], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        found[probe.name] = done.stdout.splitlines()
    assert len(found["portable"]) == 3 * 39 * 80
    assert len(set(found["portable"])) > 1000
    assert "nan" not in found["portable"]
    for name, lines in found.items():
        assert lines == found["portable"], name


def test_a_step_allocates_nothing(folder: Path) -> None:
    """From the second of its kind on: a batch with shared tiles, one with a tree, several steps in a call."""
    done = subprocess.run([str(linked(folder, "allocations_sanitize"))], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr
