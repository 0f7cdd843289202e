"""docs/add-a-model.md, followed to the letter in a copy: its file, its line and its toy make a family that passes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "add-a-model.md"
FAMILY = "src/pelton/models/archs/seed_oss.py"
INSERTIONS = {
    "src/pelton/models/__init__.py, in ARCHS": ("src/pelton/models/__init__.py", '    "arch",\n    {\n'),
    "tests/oracle/tiny.py, in TOYS": ("tests/oracle/tiny.py", "TOYS: dict[str, Toy] = {\n"),
}
COPIED = ("src", "tools", "tests/oracle")
FILES = (
    "pyproject.toml",
    "tests/conftest.py",
    "tests/conformance/registry_entries.py",
    "tests/conformance/test_arch.py",
    "tests/conformance/test_arch_fields.py",
)
# The copy's families with the installed rest, which may be compiled and lie elsewhere.
RUN = """
import sys
from importlib.machinery import PathFinder

class Copied:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, ["src/pelton"] if name == "pelton.models" else path) if (
            (name + ".").startswith("pelton.models.")) else None

sys.meta_path.insert(0, Copied())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def blocks() -> dict[str, str]:
    """The page's Python code, by what its first line says of where it goes."""
    found = re.findall(
        r"^```python\n# ([^\n]+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return dict(found)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the page touches and runs, as it is after following the page."""
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    code = blocks()
    assert set(code) == {FAMILY, *INSERTIONS}
    assert not (tmp_path / FAMILY).exists()
    (tmp_path / FAMILY).write_text(code[FAMILY])
    for place, (file, before) in INSERTIONS.items():
        text = (tmp_path / file).read_text()
        assert text.count(before) == 1
        (tmp_path / file).write_text(text.replace(before, before + code[place]))
    return tmp_path


def suites(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The run that the page asks for, which says how many tests passed."""
    (command,) = re.findall(r"^scripts/test (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    arguments = [*command.split(), *words, "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    return subprocess.run([sys.executable, "-c", RUN, *arguments], cwd=copy, capture_output=True, text=True)


@pytest.mark.timeout(180)
def test_the_family_that_the_page_adds_passes(copy: Path) -> None:
    assert len((copy / FAMILY).read_text().splitlines()) <= 120
    done = suites(copy)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 15 and "skipped" not in done.stdout
    leaks = subprocess.run([sys.executable, "tools/leaks.py"], cwd=copy, capture_output=True, text=True)
    assert "seed_oss" not in leaks.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('("q", "k", "v") if', '("q", "k") if'),
        ("eps=1e-6, ", "eps=1e-6, theta=1e6, "),
        ('read.flag("attention_out_bias")', "True"),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_suites_would_find_a_fault(copy: Path, right: str, wrong: str) -> None:
    text = (copy / FAMILY).read_text()
    assert text.count(right) == 1
    (copy / FAMILY).write_text(text.replace(right, wrong))
    assert suites(copy, "-x").returncode == 1
