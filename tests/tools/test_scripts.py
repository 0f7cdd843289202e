"""scripts/env: what makes it build again, and compilers it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path("src/pelton/backends/cpu/native")


def shell(root: Path, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs commands with the functions of scripts/env at hand."""
    return subprocess.run(
        ["bash", "-c", f"source scripts/env; {commands}"],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with the scripts and the sources of the compiled part, and a .venv that has an interpreter."""
    sources = [ROOT / name for name in ("scripts/env", "pyproject.toml", "CMakeLists.txt")]
    for path in [*sources, *(path for path in (ROOT / NATIVE).rglob("*") if path.is_file())]:
        to = tmp_path / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def core_hash(root: Path) -> str:
    done = shell(root, "_core_hash")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 64
    return done.stdout


def test_every_change_of_a_native_file_builds_again(copy: Path) -> None:
    files = [path for path in (copy / NATIVE).rglob("*") if path.is_file()]
    assert {".cpp", ".h", ".inl"} <= {path.suffix for path in files}
    seen = {core_hash(copy)}
    for path in [*files, copy / "CMakeLists.txt", copy / "pyproject.toml"]:
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(core_hash(copy))
    assert len(seen) == len(files) + 3
    (copy / NATIVE / "new.file").write_text("")
    files[0].rename(files[0].with_name("moved"))
    assert core_hash(copy) not in seen


def test_the_same_files_do_not_build_again(copy: Path) -> None:
    first = core_hash(copy)
    for path in (copy / NATIVE).rglob("*"):
        path.touch()
    (copy / "src/pelton/other.py").write_text("x = 1\n")
    assert core_hash(copy) == first


@pytest.mark.parametrize(
    ("version", "vendor", "good"),
    [
        ("10.2.1", "Free Software Foundation", False),
        ("9", "Free Software Foundation", False),
        ("11", "Free Software Foundation", True),
        ("12.2.0", "Free Software Foundation", True),
        ("4.2.1", "clang", True),
    ],
)
def test_old_compilers_are_told(tmp_path: Path, version: str, vendor: str, good: bool) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = -dumpversion ] && echo {version} || echo "(C) {vendor}"\n')
    compiler.chmod(0o755)
    done = shell(ROOT, "_need_compiler", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (done.returncode == 0) == good, done.stderr
    if not good:
        assert f"g++ {version}; the CPU kernels need 11 or newer" in done.stderr


def test_a_missing_compiler_is_told() -> None:
    done = shell(ROOT, "PATH=/nowhere; _need_compiler", PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert "no C++ compiler was found" in done.stderr
