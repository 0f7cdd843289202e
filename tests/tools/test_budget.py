"""Each budget of tools/budget.py must notice when it is exceeded, and only then."""

from collections.abc import Callable
from pathlib import Path

import pytest

import budget

Write = Callable[[str, str], Path]

METHODS = "".join(f"    def m{i}(self): ...\n" for i in range(16))
NINE = ", ".join("abcdefghi")


def exceeded(root: Path) -> list[tuple[str, int]]:
    return [(m.kind, m.size) for m in budget.measure(root) if m.exceeds]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("src/pelton/a.py", "x = 1\n" * 400, []),
        ("src/pelton/a.py", "x = 1\n" * 401, [("file lines", 401)]),
        ("tests/test_a.py", "x = 1\n" * 600, []),
        ("tests/test_a.py", "x = 1\n" * 601, [("native or test file lines", 601)]),
        ("src/pelton/backends/cpu/native/a.cpp", "int x;\n" * 600, []),
        ("src/pelton/backends/cpu/native/a.cpp", "int x;\n" * 601, [("native or test file lines", 601)]),
        ("src/pelton/a.py", "def f():\n" + "    x = 1\n" * 59, []),
        ("src/pelton/a.py", "def f():\n" + "    x = 1\n" * 60, [("function lines", 61)]),
        ("src/pelton/a.py", "class A:\n    async def f(self):\n" + "        x = 1\n" * 60, [("function lines", 61)]),
        ("src/pelton/a.py", f"class A:\n{METHODS}", [("class methods", 16)]),
        ("src/pelton/a.py", f"class A(Protocol[T]):\n{METHODS}", [("protocol methods", 16)]),
        ("src/pelton/a.py", f"def f({NINE}): ...", [("parameters", 9)]),
        ("src/pelton/a.py", "def f(a, b, c, *, d, e, f, g, h, i): ...", [("parameters", 9)]),
        ("src/pelton/a.py", "class A:\n    def f(self, a, b, c, d, e, f, g, h): ...", []),
        ("src/pelton/a.py", f"class A:\n    @staticmethod\n    def f({NINE}): ...", [("parameters", 9)]),
        ("src/pelton/a.py", "@dataclass\nclass A:\n" + "".join(f"    x{i}: int\n" for i in range(20)), []),
        (
            "src/pelton/a.py",
            "class A:\n    def f(self):\n" + "".join(f"        self.x{i} = 1\n" for i in range(16)),
            [("class attributes", 16)],
        ),
    ],
)
def test_limits(tmp_path: Path, write: Write, path: str, text: str, expected: list[tuple[str, int]]) -> None:
    write(path, text)
    assert exceeded(tmp_path) == expected


def test_folder_counts_sources_but_not_its_init(tmp_path: Path, write: Write) -> None:
    for i in range(12):
        write(f"src/pelton/kv/a{i}.py", "")
    write("src/pelton/kv/__init__.py", "")
    assert exceeded(tmp_path) == []
    write("src/pelton/kv/one_more.cpp", "")
    assert exceeded(tmp_path) == [("files in a folder", 13)]


def test_technique_folders_may_grow(tmp_path: Path, write: Write) -> None:
    write("pyproject.toml", '[tool.pelton.budget]\ntechnique-folders = ["codecs"]\n')
    for i in range(13):
        write(f"src/pelton/kv/codecs/a{i}.py", "")
    assert exceeded(tmp_path) == []


@pytest.mark.parametrize("name", ["LLM", "serve", "Group.run"])
def test_parameters_are_exempt_by_name(tmp_path: Path, write: Write, name: str) -> None:
    write("pyproject.toml", f'[tool.pelton.budget]\nexempt-parameters = ["{name}"]\n')
    write(
        "src/pelton/a.py",
        f"class LLM:\n    def __init__(self, {NINE}): ...\n"
        f"def serve({NINE}): ...\n"
        f"class Group:\n    def run(self, {NINE}): ...\n",
    )
    assert exceeded(tmp_path) == [("parameters", 9)] * 2


def test_unknown_setting_is_an_error(tmp_path: Path, write: Write) -> None:
    write("pyproject.toml", "[tool.pelton.budget]\nexempt = []\n")
    with pytest.raises(SystemExit, match="unknown keys"):
        budget.measure(tmp_path)


def test_exit_status_and_message(tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("src/pelton/a.py", "def f(): ...\n")
    assert budget.main(tmp_path) == 0
    write("src/pelton/b.py", f"def f({NINE}): ...\n")
    assert budget.main(tmp_path) == 1
    assert "budget: src/pelton/b.py:1 f: 9 parameters, at most 8" in capsys.readouterr().out


def test_report_shows_the_ten_largest(tmp_path: Path, write: Write) -> None:
    for i in range(12):
        write(f"src/pelton/a{i:02}.py", "x = 1\n" * (i + 1))
    lines = budget.report(budget.measure(tmp_path))
    files = lines[1 : lines.index("native or test file lines (at most 600)")]
    assert [line.split()[0] for line in files] == [str(n) for n in range(12, 2, -1)]
