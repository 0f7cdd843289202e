"""scripts/env: what makes it build again, and what it refuses; the arguments of scripts/chat."""

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


def python_with_headers(folder: Path, include: Path) -> Path:
    """Stands for an interpreter whose headers are said to be in `include`."""
    stand_in = folder / "python"
    stand_in.write_text(f"#!/bin/sh\necho {include}\n")
    stand_in.chmod(0o755)
    return stand_in


def test_missing_headers_of_python_are_told(tmp_path: Path) -> None:
    python = python_with_headers(tmp_path, tmp_path)
    done = shell(ROOT, f"_need_headers {python}")
    assert done.returncode == 1
    assert f"{tmp_path}/Python.h" in done.stderr and "apt install python3-dev" in done.stderr
    (tmp_path / "Python.h").write_text("")
    assert shell(ROOT, f"_need_headers {python}").returncode == 0
    assert shell(ROOT, f"_need_headers {sys.executable}").returncode == 0


def test_a_failed_build_shows_the_first_errors(tmp_path: Path) -> None:
    """However much is said after them."""
    log = tmp_path / "log"
    first = "exec.cpp:26:9: error: 'missing' was not declared"
    rest = "\n".join(f"  line {number} of pip" for number in range(100))
    log.write_text(f"[1/3] Building\n  {first}\n  26 | int x\nFAILED: exec.cpp.o\n{rest}\nninja: build stopped\n")
    done = shell(ROOT, f"_log={log}; _explain_failure")
    assert done.returncode == 1
    before, _, after = done.stderr.partition("the first errors are above")
    assert first in before and "26 | int x" in before and str(log) in after


def test_progress_is_quiet_and_keeps_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = r"Collecting click\nnoise\n[3/9] Building CXX object CMakeFiles/a.dir/b/fpu.cpp.o\nend"
    done = shell(ROOT, f"_log={log}; {{ printf 'Coll'; sleep 1.2; printf '{steps[4:]}'; }} | _show_progress")
    assert not done.stderr, "this is no terminal"
    assert log.read_text().splitlines() == steps.replace("\\n", "\n").splitlines()


def test_interrupting_the_installation(copy: Path) -> None:
    done = shell(copy, "_set_up() { kill -INT $$; }; pelton_env core")
    assert done.returncode == 130
    assert done.stderr.endswith("pelton: interrupted; run it again.\n")


def test_help_of_env_sets_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT / "scripts/env")
    for script in (ROOT / "scripts/env", tmp_path / "link"):
        done = subprocess.run(["bash", str(script), "--help"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "scripts/env [core|test]" in done.stdout and "PELTON_VENV" in done.stdout
        assert "shellcheck" not in done.stdout and "set -e" not in done.stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", []),
        ("Why is it?", ["--quick=Why is it?"]),
        ("Why --max-tokens 5", ["--max-tokens", "5", "--quick=Why"]),
        ("--max-tokens 5", ["--max-tokens", "5"]),
        ("Why -v -- -5 -x", ["-v", "--quick=Why -5 -x"]),
        ("--seed 1 -- Why so?", ["--seed", "1", "--quick=Why so?"]),
    ],
)
def test_arguments_of_chat(tmp_path: Path, words: str, wanted: list[str]) -> None:
    """Through a link, as from a folder of one's own on the path; the interpreter only shows what it gets."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "link").symlink_to(ROOT / "scripts/chat")
    done = subprocess.run(
        ["bash", str(tmp_path / "link"), *words.split()],
        env={"PATH": "/usr/bin:/bin", "PELTON_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["-m", "pelton", "chat", *wanted]
