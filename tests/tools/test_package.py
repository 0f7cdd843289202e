"""The package as a whole: its public names, and how little importing it costs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pelton

ROOT = Path(__file__).resolve().parents[2]


def test_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import pelton; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The finder of an editable installation may add modules of its own, but no library.
    loaded = set(result.stdout.split())
    assert "pelton" in loaded
    assert not {name.split(".")[0] for name in loaded} & {"numpy", "torch", "tokenizers", "jinja2", "msgspec", "click"}
    assert not {name for name in loaded if name.startswith("pelton.")}


def test_unknown_name_lists_the_public_ones() -> None:
    with pytest.raises(AttributeError, match="public names: LLM"):
        _ = pelton.Llm


@pytest.mark.parametrize("name", pelton.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(pelton, name) is getattr(pelton, name)
    assert name in dir(pelton)


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pelton.__version__ == project["version"]
    assert pelton.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
