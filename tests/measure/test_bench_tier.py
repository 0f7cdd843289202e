"""bench.tier without a server: what is asked of which start, and that what was not found is not told as found."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import tier

from pelton.measure.bench.figures import Timing

SECONDS = {True: 0.5, False: 4.0}


class Words:
    """In place of prompts of a tokenizer: numbered."""

    def __init__(self) -> None:
        self.made = 0

    def text(self, tokens: int) -> str:
        self.made += 1
        return f"{self.made}: {tokens}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool | None]]:
    """(URL, prompt, whether it is to be found) of all that is asked; each server has a URL of its own."""
    calls: list[tuple[str, str, bool | None]] = []
    starts: list[list[str]] = []

    @contextmanager
    def server(model: str, flags: list[str]) -> Iterator[tuple[str, float]]:
        starts.append(flags)
        assert flags == starts[0]
        yield f"start {len(starts)}", 0.1

    def ask(url: str, prompt: str, *, found: bool | None) -> Timing:
        calls.append((url, prompt, found))
        return Timing(sent=1.0, pieces=[1.0 + SECONDS[bool(found)]], text=f"answer {prompt}")

    monkeypatch.setattr(tier, "server", server)
    monkeypatch.setattr(tier, "_ask", ask)
    return calls


def test_each_prompt_is_computed_once_and_then_found(asked: list[tuple[str, str, bool | None]], tmp_path: Path) -> None:
    figures = tier.tier("m", Words(), 2, tmp_path)  # type: ignore[arg-type]
    long = [(url, prompt, found) for url, prompt, found in asked if prompt.endswith(str(tier.TOKENS))]
    prompts = [prompt for _, prompt, _ in long[:2]]
    assert long[:2] == [("start 1", prompt, False) for prompt in prompts]
    assert [(prompt, found) for url, prompt, found in long if url == "start 2" and found] == [
        (prompt, True) for prompt in prompts for _ in range(2)
    ]
    assert [prompt for url, prompt, found in long if url == "start 3" and found] == prompts
    computed = [prompt for _, prompt, found in long if not found]
    assert len(set(computed)) == len(computed) == 6, "nothing is computed that was asked before"
    assert figures["ratio"] == {name: {"median": 8.0, "min": 8.0, "max": 8.0, "runs": 2} for name in (
        tier.TREE, tier.FILES, tier.CACHED_FILES
    )}  # fmt: skip
    assert len(tier.lines(figures)) == 4 and "8.0 times faster" in tier.lines(figures)[1]


@pytest.mark.parametrize(("found", "cached"), [(True, 100), (False, 4000)])
def test_what_was_not_to_be_measured_ends_the_run(found: bool, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, *given: object) -> None: ...

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *error: object) -> None: ...

        async def ask(self, sample: object) -> Timing:
            return Timing(sent=0.0, pieces=[1.0], input_tokens=4096, cached_tokens=cached)

    monkeypatch.setattr(tier, "Client", Client)
    assert tier._ask("http://x", "p", found=None).ttft == 1.0
    with pytest.raises(SystemExit, match=f"{cached} of 4096 tokens were found"):
        tier._ask("http://x", "p", found=found)
