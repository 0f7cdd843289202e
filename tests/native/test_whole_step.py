"""A small model's steps through the whole executable give the same bits with the kernels of every instruction set.

Those of AMX on emulated tile registers too; tests/backends/ has more such steps for the sets that this CPU has.
"""

import subprocess
from pathlib import Path

import pytest
from tests.native.library import FLAGS, HERE, NATIVE, build, find_compiler, run_all
from tests.native.probe import Probe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def program(probes: list[Probe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executable around the kernels that the other tests have compiled."""
    compiler, folder = find_compiler(), tmp_path_factory.mktemp("step")
    assert compiler is not None
    sources = [HERE / "cross" / "step.cpp", NATIVE / "threads" / "pool.cpp", *sorted((NATIVE / "step").glob("*.cpp"))]
    common = [compiler, *FLAGS, "-O1", f"-I{NATIVE}", f"-I{HERE / 'cpp'}"]
    run_all(
        [[*common, "-c", str(path), "-o", str(folder / f"{path.stem}_{path.parent.name}.o")] for path in sources],
        at_once=2,
    )
    library, made = build(compiler), folder / "step"
    objects = [str(path) for path in sorted(folder.glob("*.o"))]
    run_all(
        [[compiler, *objects, str(library), f"-Wl,-rpath,{library.parent}", "-pthread", "-o", str(made)]], at_once=1
    )
    return made


def test_every_set_gives_the_same_logits(program: Path, probes: list[Probe]) -> None:
    found = {}
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
