"""Fixtures of the command line's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.running import Terminal

from pelton import LLM


@pytest.fixture(scope="session")
def llm(smollm2: Path) -> Iterator[LLM]:
    """The default model in this process, to compare with; set up as the commands do."""
    with LLM(str(smollm2), max_num_seqs=1) as model:
        yield model


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Opens Terminals that are closed in the end."""
    opened: list[Terminal] = []

    def open_one(*words: str) -> Terminal:
        opened.append(Terminal(*words))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
