"""tools/leaks.py must notice every place in src/ that knows a technique's name."""

from collections.abc import Callable
from pathlib import Path

import pytest

import budget
import leaks

Write = Callable[[str, str], Path]


def test_own_file_and_registry_line_may_say_the_name(tree: Path) -> None:
    assert leaks.find_leaks(tree) == []
    assert leaks.main(tree) == 0


@pytest.mark.parametrize(
    "code",
    [
        'if name == "eagle":\n    pass\n',
        "use_eagle = True\n",
        "x = EagleTree()\n",
        "from pelton.speculate.methods import eagle\n",
        'x = f"the {1} eagle"\n',
        "def f(x):\n    return x.is_eagle()\n",
    ],
)
def test_other_files_may_not(tree: Path, write: Write, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("src/pelton/engine/step.py", code)
    assert {(leak.kind, leak.name, leak.file) for leak in leaks.find_leaks(tree)} == {
        ("speculator", "eagle", "src/pelton/engine/step.py")
    }
    assert leaks.main(tree) == 1
    assert "knows 'eagle'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code",
    [
        '"""Speaks of the eagle."""\n',
        'def f():\n    """As an eagle does."""\n',
        "x = 1  # the eagle\n",
        "eagles = beagle = 1\n",
    ],
)
def test_comments_docstrings_and_other_words_are_free(tree: Path, write: Write, code: str) -> None:
    write("src/pelton/engine/step.py", code)
    assert leaks.find_leaks(tree) == []


def test_cpp_counts_without_its_comments(tree: Path, write: Write) -> None:
    file = "src/pelton/backends/cpu/native/a.cpp"
    write(file, "// eagle\n/* eagle\n eagle */ int x;\n")
    assert leaks.find_leaks(tree) == []
    write(file, '// none\nvoid run_eagle();\nauto s = "// eagle";\n')
    assert [leak.line for leak in leaks.find_leaks(tree)] == [2, 3]


def test_the_rest_of_the_registry_file_may_not(tree: Path) -> None:
    file = tree / "src/pelton/speculate/__init__.py"
    file.write_text(file.read_text() + '\nDEFAULT = "eagle"\n')
    assert [leak.text for leak in leaks.find_leaks(tree)] == ['"eagle"']


def test_a_longer_registered_name_hides_a_shorter_one(tree: Path, write: Write) -> None:
    write(
        "src/pelton/kv/__init__.py",
        'C = Registry("codec", {"tree": "pelton.kv.codecs.tree:A", "eagle-tree": "pelton.kv.codecs.both:B"})\n',
    )
    write("src/pelton/kv/codecs/both.py", 'x = "eagle_tree"\n')
    assert leaks.find_leaks(tree) == []
    write("src/pelton/kv/pool.py", 'x = "eagle_tree"\n')
    assert [leak.name for leak in leaks.find_leaks(tree)] == ["eagle-tree"]


@pytest.mark.parametrize("name", ["eagle", "@speculator"])
def test_allow_list(tree: Path, write: Write, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("src/pelton/engine/step.py", 'x = "eagle"\n')
    write("tools/leaks.allow", f"# comment\n{name} src/pelton/engine/* the default of the engine\n")
    assert leaks.main(tree) == 0
    write("src/pelton/kv/pool.py", 'x = "eagle"\n')
    assert leaks.main(tree) == 1
    assert "src/pelton/kv/pool.py:1" in capsys.readouterr().out


def test_allow_list_needs_a_reason(tree: Path, write: Write) -> None:
    write("tools/leaks.allow", "eagle *\n")
    with pytest.raises(SystemExit, match="expected NAME GLOB REASON"):
        leaks.main(tree)


def test_a_table_that_is_not_literal_is_refused(tree: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("src/pelton/kv/__init__.py", 'C: Registry[int] = Registry("codec", dict(a="b:c"))\n')
    assert leaks.main(tree) == 1
    assert "must be a literal dict" in capsys.readouterr().out


def test_every_native_file_is_read(tree: Path, write: Write) -> None:
    """No suffix in use may be unknown to the tools that measure and search sources."""
    native = leaks.ROOT / "src" / "pelton" / "backends" / "cpu" / "native"
    suffixes = {path.suffix for path in native.rglob("*") if path.is_file()}
    assert ".inl" in suffixes
    assert suffixes <= set(leaks.CPP_SUFFIXES) & set(budget.CPP_SUFFIXES)
    write("src/pelton/backends/cpu/native/isa/a.inl", "void run_eagle();\n")
    assert [leak.name for leak in leaks.find_leaks(tree)] == ["eagle"]
