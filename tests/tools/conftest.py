"""A fabricated source tree for the tests of the tools."""

from collections.abc import Callable
from pathlib import Path

import pytest

REGISTRY = """
from pelton.core.registry import Registry

METHODS: Registry[type] = Registry("speculator", {
    "eagle": "pelton.speculate.methods.eagle:Eagle",
})
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """write(path, text) -> the file, below tmp_path."""

    def write_file(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return write_file


@pytest.fixture
def tree(tmp_path: Path, write: Callable[[str, str], Path]) -> Path:
    """A tree without fault: one registry, its technique, its conformance test."""
    write("src/pelton/speculate/__init__.py", REGISTRY)
    write("src/pelton/speculate/methods/eagle.py", "class Eagle:\n    pass\n")
    write(
        "tests/conformance/test_speculators.py",
        'import pytest\n\n\n@pytest.mark.parametrize("name", entries("speculator"))\ndef test_it(name): ...\n',
    )
    return tmp_path
