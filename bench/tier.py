"""A long prompt whose beginning was computed before: from the tree, from files, and computed again, in turns.

Three starts of a server with one folder of files. The first computes each prompt, and writes its blocks when it ends.
The second has the prompts in files that are no longer in the system's memory: of each pair the prompt is read, asked
again while it is in the tree, and another one is computed. The third does the same with files that the system still has
in memory. Invariant: what is told as found was found, and a prompt has one answer, wherever its beginning comes from.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import record
from bench.peers.ask import NAME, Prompts
from bench.scenarios import server

from pelton.core.clock import SystemClock
from pelton.measure.bench.client import Client, Target
from pelton.measure.bench.figures import Timing
from pelton.measure.bench.workload import Sample

TOKENS = 4096
ANSWER = 2
LEAST_FOUND = 0.95  # of a prompt that was there
ROOM = "4G"  # for files
WARM_TOKENS = 256
SHORT_TOKENS = 16  # less than a block
IDLE_TIMES = 4  # some of what is cached goes to files each time that a server has nothing more to do
COMPUTED, TREE, FILES, CACHED_FILES = "computed", "tree", "files", "files in the system's memory"


def tier(model: str, prompts: Prompts, pairs: int, folder: Path | None = None) -> dict[str, object]:
    """Milliseconds to the first token by where the beginning came from, and how many times faster that is than what was
    computed beside it. `folder`: on the disk that is to be measured; None: the system's for what is temporary.
    """
    times: dict[str, list[float]] = {name: [] for name in (COMPUTED, TREE, FILES, CACHED_FILES)}
    ratios: dict[str, list[float]] = {name: [] for name in (TREE, FILES, CACHED_FILES)}
    asked = [prompts.text(TOKENS) for _ in range(pairs)]
    with TemporaryDirectory(dir=folder) as kept:
        flags = ["--kv-disk-bytes", ROOM, "--kv-disk-folder", kept]
        with server(model, flags) as (url, _):
            answers = [_written(url, prompt, prompts) for prompt in asked]
        for where in (FILES, CACHED_FILES):
            if where == FILES:
                _forget_pages(Path(kept))
            with server(model, flags) as (url, _):
                _ask(url, prompts.text(WARM_TOKENS), found=None)
                for prompt, answer in zip(asked, answers, strict=True):
                    turns = [(where, prompt, True), (COMPUTED, prompts.text(TOKENS), False)]
                    if where == FILES:
                        turns.insert(1, (TREE, prompt, True))
                    told = {name: _ask(url, text, found=found) for name, text, found in turns}
                    if any(one.text != answer for name, one in told.items() if name != COMPUTED):
                        raise SystemExit(f"tier: {answer!r} was answered otherwise: {told}")
                    for name, one in told.items():
                        times[name].append(1000 * one.ttft)
                        if name != COMPUTED:
                            ratios[name].append(told[COMPUTED].ttft / one.ttft)
    return {
        "ttft_ms": {name: record.summary(values, 1) for name, values in times.items()},
        "ratio": {name: record.summary(values, 2) for name, values in ratios.items()},
    }


def lines(figures: dict[str, object]) -> Sequence[str]:
    """For people."""
    times, ratios = figures["ttft_ms"], figures["ratio"]
    assert isinstance(times, dict) and isinstance(ratios, dict)
    said = []
    for name, one in times.items():
        faster = f", {ratios[name]['median']:.1f} times faster" if name in ratios else ""
        said.append(f"{name:<29} {one['median']:>8,.0f} ms [{one['min']:,.0f}-{one['max']:,.0f}]{faster}")
    return said


def _written(url: str, prompt: str, prompts: Prompts) -> str:
    """The answer to a prompt, most of whose blocks are in files then: the end of a server takes a few seconds only."""
    answer = _ask(url, prompt, found=False).text
    for _ in range(IDLE_TIMES):
        _ask(url, prompts.text(SHORT_TOKENS), found=None)
    return answer


def _ask(url: str, prompt: str, *, found: bool | None) -> Timing:
    """One answer; ends the run where its beginning was not `found`, or was and must not be. None: either."""

    async def asked() -> Timing:
        async with Client(Target(url, NAME, extra={"temperature": 0, "ignore_eos": True}), SystemClock()) as client:
            return await client.ask(Sample(ANSWER, prompt=prompt))

    timing = asyncio.run(asked())
    if not timing.ok:
        raise SystemExit(f"tier: {timing.error}")
    cached, tokens = timing.cached_tokens, timing.input_tokens
    if found is not None and (cached >= LEAST_FOUND * tokens) != found:
        said = f"tier: {cached} of {tokens} tokens were found after {timing.ttft:.1f} s"
        raise SystemExit(f"{said}, which is not what was to be measured; is the machine or its disk busy?")
    return timing


def _forget_pages(folder: Path) -> None:
    """The system lets go of what it has of the files in memory, so that they are read from the disk."""
    for path in folder.rglob("*.kv"):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
