"""Prefixes in files: found by a later start to the bit, in default and exact arithmetic; by no other settings."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.engine.test_windows import model as windowed_model
from tests.oracle.toy import randomise

from pelton.core.errors import CapacityError, SettingError
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM
from pelton.kv.tiers import files

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


def refused(model: Path, **settings: object) -> str:
    with pytest.raises(SettingError) as refusal:
        LLM(str(model), max_num_seqs=2, **settings)
    return str(refusal.value)


@pytest.mark.parametrize("below", ["", "inside"])
def test_a_folder_that_cannot_work_is_refused_at_the_start(tiny_model: Path, tmp_path: Path, below: str) -> None:
    taken = tmp_path / "taken"
    taken.write_text("no folder")
    said = refused(tiny_model, kv_disk_bytes=1 << 26, kv_disk_folder=str(taken / below))
    assert said.startswith(f"kv_disk_folder={str(taken / below)!r} cannot work: ") and "kv_disk_bytes" in said
    assert taken.read_text() == "no folder" and list(tmp_path.iterdir()) == [taken]


def test_a_full_disk_is_refused_at_the_start(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    said = refused(tiny_model, kv_disk_bytes=1 << 26, kv_disk_folder=str(tmp_path))
    assert said.startswith(f"kv_disk_folder={str(tmp_path)!r} cannot work: No space left on device. Set kv_disk_folder")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused_at_the_start(tiny_model: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    said = refused(tiny_model, kv_disk_bytes=1 << 26, kv_disk_folder=str(tmp_path))
    tmp_path.chmod(0o700)
    assert "cannot work: Permission denied." in said


def test_the_default_folder_is_no_exception(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kv").write_text("no folder")
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    said = refused(tiny_model, kv_disk_bytes=1 << 26)
    assert said.startswith(f"The folder {tmp_path / 'kv'} for kv_disk_bytes={1 << 26} cannot work: ")
    said = refused(tiny_model, kv_disk_bytes=1 << 26, kv_disk_folder="~nobody-of-this-name/kv")
    assert said.startswith("kv_disk_folder='~nobody-of-this-name/kv' cannot work: there is no such home folder.")


def test_room_for_no_file_is_refused(model: Path, tmp_path: Path) -> None:
    said = refused(model, kv_disk_bytes=999, kv_disk_folder=str(tmp_path))
    least = re.fullmatch(
        r"kv_disk_bytes=999 has no room for a block of each KV group. Set .* to at least (\S+) MiB, or to 0.",
        said,
    )
    assert least is not None and not list(tmp_path.iterdir())
    with LLM(str(model), kv_disk_bytes=int(float(least[1]) * 2**20) + 1, kv_disk_folder=str(tmp_path)):
        pass


def test_a_folder_that_breaks_later_is_no_error(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: int, data: object) -> None:
        if len(data) != trial:  # type: ignore[arg-type]
            raise OSError(5, "Input/output error")

    with LLM(str(tiny_model)) as llm:
        trial = files.file_bytes(llm.report.kv_block_bytes, 4 * llm.report.block_size)
    monkeypatch.setattr(files, "write_all", broken)
    plain, _ = ask(tiny_model)
    settings = {"num_blocks": 14, "kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path)}
    found, figures = ask(tiny_model, prompts=3, **settings)
    assert found == plain and figures["disk_failed_total"] > 0


def test_the_report_says_what_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    def lines(**settings: object) -> dict[str, str]:
        with LLM(str(tiny_model), **settings) as llm:
            return {line[:9].strip(): line[9:] for line in llm.report.lines()}

    disk = {"kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path)}
    both = lines(**disk, swap_space_bytes=1 << 22)
    assert str(tmp_path) in both["disk"] and "at most 64.0 MiB with those of other models" in both["disk"]
    assert "blocks of preempted requests, and of prefixes on their way to files and back, " in both["host"]
    for none in ({"swap_space_bytes": 0}, {"preemption_mode": "recompute"}):
        assert " blocks of prefixes on their way to files and back, " in lines(**disk, **none)["host"]
        assert not {"disk", "host"} & lines(**none).keys()
    alone = lines()
    assert " blocks of preempted requests, " in alone["host"] and "disk" not in alone


def test_without_swap_space_nobody_is_swapped_although_files_have_slots(tiny_model: Path, tmp_path: Path) -> None:
    def swapped(**settings: object) -> tuple[int, int]:
        with LLM(str(tiny_model), max_num_seqs=4, num_blocks=14, **settings) as llm:
            asked: Any = [{"prompt_token_ids": [number + 1] * 90} for number in range(4)]
            llm.generate(asked, SamplingParams(temperature=0, max_tokens=120, ignore_eos=True), use_tqdm=False)
            stats = llm._parts.session.engine.stats
            assert stats.preemptions_total > 0 and stats.host_slots > 0
            return stats.swaps_total, stats.saved_blocks_total

    disk = {"kv_disk_bytes": 1 << 26, "kv_disk_folder": str(tmp_path)}
    assert swapped(**disk, swap_space_bytes=0) == (0, 0)
    assert swapped(**disk, preemption_mode="swap")[0] > 0


def test_swap_space_for_less_than_a_block_is_refused(model: Path) -> None:
    with pytest.raises(
        CapacityError, match=r"swap_space_bytes=5 has no room .* Set swap_space_bytes to at least"
    ) as no:
        LLM(str(model), swap_space_bytes=5)
    least = re.search(r"at least (\S+) MiB", str(no.value))
    assert least is not None
    with LLM(str(model), swap_space_bytes=int(float(least[1]) * 2**20) + 1) as llm:
        assert all(slots >= 1 for slots in llm.report.host_slots)
