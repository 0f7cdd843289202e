"""Prefixes in files: found by a later start to the bit, in default and exact arithmetic; by no other settings."""

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.engine.test_windows import model as windowed_model
from tests.oracle.toy import randomise

from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM

pytest.importorskip("pelton.backends.cpu._native")

PROMPT = [(7 * n + n * n) % 250 for n in range(150)]
KINDS = [
    SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=1.2, seed=5, max_tokens=24, logprobs=1, ignore_eos=True),
]
Told = list[tuple[list[int], str]]


def ask(model: Path, prompts: int = 0, **settings: object) -> tuple[Told, dict[str, float]]:
    """What the model answers, to the bit, and the engine's figures before it ends. `prompts`: others in between."""
    told: Told = []
    with LLM(str(model), max_num_seqs=2, **settings) as llm:
        for one in KINDS:
            for number in range(prompts):
                other: Any = [{"prompt_token_ids": [number + 1] * 140}]
                llm.generate(other, SamplingParams(max_tokens=2, temperature=0), use_tqdm=False)
            asked: Any = [{"prompt_token_ids": PROMPT}]
            output = llm.generate(asked, one, use_tqdm=False)[0].outputs[0]
            told.append((list(output.token_ids), repr(output.logprobs)))
        engine = llm._parts.session.engine
        engine.check()
        stats = engine.stats
        return told, {name: getattr(stats, name) for name in stats.__struct_fields__ if name.startswith("disk")}


@pytest.fixture(scope="module", params=["full", "all", "mixed"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Layers that look back without end, all within a window, or some."""
    if request.param == "full":
        return tiny_model
    made = windowed_model(request.param).eval()
    randomise(made)
    folder: Path = tmp_path_factory.mktemp(f"disk_{request.param}")
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    return folder


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_later_start_begins_where_an_earlier_one_was(model: Path, tmp_path: Path, dtype: str) -> None:
    settings = {"dtype": dtype, "kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path)}
    plain, _ = ask(model, dtype=dtype, enable_prefix_caching=False)
    first, before = ask(model, **settings)
    again, after = ask(model, **settings)
    assert first == again == plain
    assert before["disk_loaded_total"] == 0 and not before["disk_rejected_total"]
    assert after["disk_hit_tokens_total"] >= 128 and after["disk_loaded_total"] > 0 and not after["disk_rejected_total"]


def test_blocks_that_others_drove_out_come_back(model: Path, tmp_path: Path) -> None:
    """There are slots enough for all that is on its way: else some would be dropped."""
    settings = {
        "num_blocks": 14,
        "kv_disk_bytes": 1 << 26,
        "kv_disk_folder": str(tmp_path),
        "swap_space_bytes": 1 << 23,
    }
    plain, _ = ask(model, enable_prefix_caching=False)
    found, figures = ask(model, prompts=6, **settings)
    assert found == plain
    assert figures["disk_stored_total"] > 0 and figures["disk_loaded_total"] > 0


def test_blocks_come_back_where_plans_are_made_ahead(tiny_model: Path, tmp_path: Path) -> None:
    settings = {
        "num_blocks": 14,
        "kv_disk_bytes": 1 << 26,
        "kv_disk_folder": str(tmp_path),
        "swap_space_bytes": 1 << 23,
        "planning_depth": 2,
        "max_steps_per_call": 1,
    }
    plain, _ = ask(tiny_model, enable_prefix_caching=False)
    found, figures = ask(tiny_model, prompts=6, **settings)
    assert found == plain
    assert figures["disk_stored_total"] > 0 and figures["disk_loaded_total"] > 0
    again, figures = ask(tiny_model, **settings)
    assert again == plain and figures["disk_hit_tokens_total"] > 0


def test_nothing_is_found_by_other_settings(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path)}
    ask(tiny_model, **settings)
    for others in ({"dtype": "float32"}, {"hf_overrides": '{"rope_theta": 5000.0}'}, {"quantization": "int8"}):
        _, figures = ask(tiny_model, **settings, **others)
        assert figures["disk_loaded_total"] == 0, others
    assert len(list(tmp_path.iterdir())) == 4


def test_spoilt_files_change_nothing(tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path)}
    first, _ = ask(tiny_model, **settings)
    paths = sorted(tmp_path.rglob("*.kv"))
    for number, path in enumerate(paths):
        data = bytearray(path.read_bytes())
        data[(number * 997) % len(data)] ^= 1
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "pelton"):
        again, figures = ask(tiny_model, **settings)
    assert again == first and figures["disk_rejected_total"] > 0 and "is not used" in caplog.text
    third, figures = ask(tiny_model, **settings)
    assert third == first and figures["disk_loaded_total"] > 0, "they were written anew"


def test_a_folder_that_cannot_be_written_is_no_error(tiny_model: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("no folder")
    plain, _ = ask(tiny_model)
    found, figures = ask(tiny_model, prompts=3, num_blocks=14, kv_disk_bytes=1 << 26, kv_disk_folder=str(taken))
    assert found == plain and figures["disk_failed_total"] > 0


def test_the_report_says_what_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path), "swap_space_bytes": 1 << 22}
    ask(tiny_model, **settings)
    with LLM(str(tiny_model), **settings) as llm:
        lines = "\n".join(llm.report.lines())
    assert "\ndisk     " in lines and str(tmp_path) in lines and "\nswap     " in lines
    with LLM(str(tiny_model), preemption_mode="recompute") as llm:
        lines = "\n".join(llm.report.lines())
    assert "\ndisk     " not in lines and "\nswap     " not in lines


BUSY = """
import sys
import time
from pelton.kv.tiers import files
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM

write_all = files._write_all

def slowly(file, data):
    for part in (memoryview(data)[:len(data) // 2], memoryview(data)[len(data) // 2:]):
        write_all(file, part)
        time.sleep(0.003)

files._write_all = slowly
llm = LLM(sys.argv[1], num_blocks=14, max_num_seqs=2, kv_disk_bytes=1 << 24, kv_disk_folder=sys.argv[2])
print("ready", flush=True)
number = 0
while True:
    number += 1
    prompt = [(number * 31 + place * place) % 250 for place in range(150)]
    llm.generate([{"prompt_token_ids": prompt}], SamplingParams(max_tokens=2, temperature=0), use_tqdm=False)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_in_the_middle_of_writes(tiny_model: Path, tmp_path: Path) -> None:
    """50 times; what is left is whole or not used, and answers stay what they were. Writes are slow, to be caught."""
    rng = Random(0)
    plain, _ = ask(tiny_model, enable_prefix_caching=False)
    settings = {"num_blocks": 14, "kv_disk_bytes": 1 << 24, "kv_disk_folder": str(tmp_path)}
    left = 0
    for turn in range(50):
        command = [sys.executable, "-c", BUSY, str(tiny_model), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.random())
            process.kill()
        left += len(list(tmp_path.rglob("*.part")))
        if turn % 10 == 9:
            found, figures = ask(tiny_model, prompts=2, **settings)
            assert found == plain and figures["disk_failed_total"] == 0
            assert not list(tmp_path.rglob("*.part"))
    assert list(tmp_path.rglob("*.kv")) and left > 5, f"{left} files were left half written"
