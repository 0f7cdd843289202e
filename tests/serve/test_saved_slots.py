"""A slot saved by one server wakes in the next: a real model and client; only what is new is computed."""

import re
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.serve.process import ServerProcess

pytestmark = [pytest.mark.dist, pytest.mark.timeout(240)]
FLAGS = ("--max-num-seqs", "4", "--max-model-len", "1024", "--disable-access-log")
STORY = "Once upon a time there was a small dog who lived in a big house by the sea. " * 12


def complete(server: ServerProcess, prompt: str, **fields: Any) -> tuple[str, int, int]:
    """(text, tokens of the prompt, of which cached)."""
    said = server.complete(prompt, max_tokens=40, logprobs=1, ignore_eos=True, **fields)
    usage, (choice,) = said["usage"], said["choices"]
    return (
        f"{choice['text']} {choice['logprobs']}",
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def post(server: ServerProcess, path: str, **body: Any) -> tuple[int, Any]:
    reply = requests.post(server.url + path, json=body, timeout=60)
    return reply.status_code, reply.json()


def metric(server: ServerProcess, name: str) -> float:
    _, text = server.ask("/metrics")
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_a_conversation_sleeps_and_wakes(smollm2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    flags = (*FLAGS, "--slot-save-path", str(folder))
    with ServerProcess(tmp_path, str(smollm2), *flags) as server:
        text, tokens, _ = complete(server, STORY, id_slot=2)
        status, saved = post(server, "/slots/2?action=save", filename="story.bin")
        assert status == 200 and saved["id_slot"] == 2 and saved["filename"] == "story.bin"
        assert saved["n_saved"] > tokens and saved["n_written"] == (folder / "story.bin").stat().st_size
        slots = server.ask("/slots")[1]
        assert [slot["n_held"] for slot in slots] == [0, 0, saved["n_saved"], 0]
        assert {slot["n_ctx"] for slot in slots} == {1024} and not any(slot["is_processing"] for slot in slots)
        assert post(server, "/slots/2?action=erase") == (200, {"id_slot": 2, "n_erased": saved["n_saved"]})
        assert metric(server, "pelton:sessions") == 0
        assert post(server, "/slots/1?action=save", filename="none.bin")[0] == 400
    first = text.partition(" {'")[0]
    with ServerProcess(tmp_path, str(smollm2), *FLAGS, "--no-enable-prefix-caching") as server:
        plain, tokens, cached = complete(server, STORY + first + " Then")
        assert cached == 0
        assert post(server, "/slots/0?action=restore", filename="story.bin")[0] == 501
    with ServerProcess(tmp_path, str(smollm2), *flags) as server:
        status, restored = post(server, "/slots/0?action=restore", filename="story.bin")
        assert (status, restored["n_restored"], restored["n_read"]) == (200, saved["n_saved"], saved["n_written"])
        assert restored["timings"]["restore_ms"] > 0 and metric(server, "pelton:sessions") == 1
        woken, _, cached = complete(server, STORY + first + " Then", id_slot=0)
        assert woken == plain and tokens - cached <= 40, "what the answer and the new text have, and no more"
        assert cached >= saved["n_saved"] - 32
        for name, status in (("none.bin", 400), ("../story.bin", 400)):
            assert post(server, "/slots/0?action=restore", filename=name)[0] == status
        with (folder / "story.bin").open("r+b") as file:
            file.seek(100_000)
            file.write(b"\xff\xfe")
        status, refused = post(server, "/slots/0?action=restore", filename="story.bin")
        assert status == 400 and refused["error"]["code"] == "invalid_slot_file"
        assert complete(server, STORY + first + " Then", id_slot=0)[0] == plain
        assert server.end() == 0
    with ServerProcess(tmp_path, str(smollm2), *flags, "--dtype", "float32") as server:
        (folder / "other.bin").write_bytes((folder / "story.bin").read_bytes())
        status, refused = post(server, "/slots/0?action=restore", filename="other.bin")
        assert status == 400 and "another model" in refused["error"]["message"]


def test_a_folder_that_is_not_there_is_told_at_the_start(smollm2: Path, tmp_path: Path) -> None:
    flag = ("--slot-save-path", str(tmp_path / "no"))
    with ServerProcess(tmp_path, str(smollm2), *flag, ready=False) as server:
        assert server.process.wait(40) == 2
        assert "--slot-save-path" in server.told and "a folder that exists" in server.told
