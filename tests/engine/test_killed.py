"""Servers that are killed while they write prefixes to files: the next one starts, and what it finds is right."""

import os
import signal
import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cli.running import environment
from tests.serve.process import ServerProcess

from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM

pytest.importorskip("pelton.backends.cpu._native")

KILLS = 50
PROMPT = [(7 * n + n * n) % 250 for n in range(150)]
# Imported by both processes of a server before anything else: a write takes so long that many are cut in their midst.
SLOWLY = """
import time
from pelton.kv.tiers import files

write_all = files.write_all

def slowly(file, data):
    half = len(data) // 2
    for part in (memoryview(data)[:half], memoryview(data)[half:]):
        write_all(file, part)
        time.sleep(0.003)

files.write_all = slowly
"""


def answer(server: ServerProcess) -> tuple[list[Any], int]:
    """What it says to PROMPT, with log-probabilities, and how many tokens of it were cached."""
    status, said = server.ask(
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": 16, "temperature": 1.2, "seed": 5, "logprobs": 2, "ignore_eos": True},
    )
    assert status == 200, said
    return said["choices"], said["usage"]["prompt_tokens_details"]["cached_tokens"]


def keep_busy(server: ServerProcess, first: int) -> None:
    """Prompts of five blocks each, which drive one another and PROMPT out, until the server is gone."""
    with suppress(OSError, HTTPException):
        for number in range(first, first + 1000):
            prompt = [(number * 31 + place * place) % 250 for place in range(150)]
            server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0})


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_in_the_middle_of_writes(tiny_model: Path, tmp_path: Path) -> None:
    """Each server begins with what those killed before it left, and with PROMPT, which only they have computed."""
    rng = Random(0)
    kept, patch = tmp_path / "kv", tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(SLOWLY)
    variables = {"PYTHONPATH": os.pathsep.join([str(patch), environment()["PYTHONPATH"]])}
    flags = ("--max-num-seqs", "2", "--num-blocks", "14", "--disable-access-log")
    with ServerProcess(tmp_path, str(tiny_model), *flags, "--no-enable-prefix-caching") as alone:
        plain, _ = answer(alone)
    disk = ("--kv-disk-bytes", str(1 << 24), "--kv-disk-folder", str(kept))
    torn = found = 0
    for turn in range(KILLS):
        with ServerProcess(tmp_path, str(tiny_model), *flags, *disk, **variables) as server:
            assert not list(kept.rglob("*.part")), "what a killed one left half written is cleared away at the start"
            said, cached = answer(server)
            assert said == plain, f"after {turn} kills, with {cached} tokens from files"
            found += cached > 0
            asking = threading.Thread(target=keep_busy, args=(server, 1000 * turn))
            asking.start()
            asking.join(rng.random())
            both = [server.process.pid, server.engine_pid]
            for pid in rng.sample(both, 2):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.process.wait(10)
            asking.join(40)
        torn += len(list(kept.rglob("*.part")))
    assert found > KILLS // 2, f"{found} servers began with what others had written"
    assert torn > KILLS // 10, f"{torn} files were left half written"
    settings: dict[str, Any] = {"num_blocks": 14, "kv_disk_bytes": 1 << 24, "kv_disk_folder": str(kept)}
    with LLM(str(tiny_model), max_num_seqs=2, **settings) as llm:
        asked: Any = {"prompt_token_ids": PROMPT}
        llm.generate(asked, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
        engine = llm._parts.session.engine
        engine.check()
        assert not engine.stats.disk_failed_total
