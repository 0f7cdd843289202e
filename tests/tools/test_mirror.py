"""tools/mirror.py must notice a registry that no conformance test loops over."""

from collections.abc import Callable
from pathlib import Path

import pytest

import mirror

Write = Callable[[str, str], Path]


def test_a_mirrored_registry_passes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main(tree) == 0
    assert "1 entries of 1 registries" in capsys.readouterr().out


def test_a_registry_without_a_test_fails_by_name(tree: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("src/pelton/kv/__init__.py", 'CODECS = Registry("codec", {"kivi": "pelton.kv.codecs.kivi:Kivi"})\n')
    assert mirror.main(tree) == 1
    output = capsys.readouterr().out
    assert 'pelton.kv.CODECS (kind "codec"; kivi)' in output
    assert "speculator" not in output


@pytest.mark.parametrize("text", ['x = "entries(speculator)"\n', "entries(KIND)\n", '# entries("speculator")\n'])
def test_only_a_call_with_a_literal_counts(tree: Path, write: Write, text: str) -> None:
    write("tests/conformance/test_speculators.py", text)
    assert mirror.main(tree) == 1


def test_an_empty_registry_needs_no_test(tree: Path, write: Write) -> None:
    write("src/pelton/kv/__init__.py", 'CODECS: Registry[type] = Registry("codec", {})\n')
    assert mirror.main(tree) == 0


def test_a_test_of_an_unknown_kind_fails(tree: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("tests/conformance/test_more.py", 'entries("speculatr")\n')
    assert mirror.main(tree) == 1
    assert "no registry of that kind" in capsys.readouterr().out


def test_two_registries_of_one_kind_fail(tree: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("src/pelton/kv/__init__.py", 'CODECS = Registry("speculator", {})\n')
    assert mirror.main(tree) == 1
    assert "must be unique" in capsys.readouterr().out
