"""docs/tokenizers.md: its names are the names there are."""

import re
from pathlib import Path

from pelton.tokenize import PRETOKENIZERS
from pelton.tokenize.gguf_vocab import KINDS, REFUSED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tokenizers.md").read_text(encoding="utf-8")


def named(start: str, end: str) -> list[str]:
    """What stands in code quotes between two phrases of the page."""
    return re.findall(r"`([^`]+)`", PAGE[PAGE.index(start) : PAGE.index(end)])


def test_all_pre_tokenizers_are_listed() -> None:
    assert named("not one of these", "Each cuts") == sorted(PRETOKENIZERS.names())


def test_all_kinds_are_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == list(KINDS)
    assert set(named("`bert` (", "are refused, as is")) == set(REFUSED)
