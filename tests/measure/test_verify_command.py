"""`pelton verify` as a user meets it, on a tiny model with a tokenizer of bytes: what it prints, and its exit codes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.measure.verify_faults import RowNoise
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.verify import verify_model
from pelton.engine.build import EngineParts, build_engine

pytest.importorskip("pelton.backends.cpu._native")
FEW = ("--schedules", "3", "--max-tokens", "6", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_talker(tmp_path_factory.mktemp("tiny"))


def verify(*words: object) -> Result:
    return CliRunner().invoke(verify_model, [str(word) for word in words])


def refusal(*words: object) -> str:
    """What is said where nothing could be compared, which is not what differing answers exit with."""
    done = verify(*words)
    assert done.exit_code == 2, done.output
    return done.stderr.rpartition("error: ")[2].strip()


def test_equal_answers_exit_with_0(model: Path) -> None:
    done = verify(model, *FEW)
    assert done.exit_code == 0, done.output
    first, second, verdict = done.stdout.splitlines()
    assert first.startswith("what happened: ") and " KV blocks copied on write, " in first
    assert " tokens found in the cache, " in first and second == "717 of 720 cells not reached; --json lists them"
    assert verdict.startswith("equal to the last bit: 3 schedules in 3 cells, ")


def test_one_of_a_kind_is_no_plural(model: Path) -> None:
    done = verify(model, *FEW[2:], "--schedules", 1)
    assert done.stdout.splitlines()[-1].startswith("equal to the last bit: 1 schedule in 1 cell, ")


def test_json_is_one_object(model: Path) -> None:
    done = verify(model, *FEW, "--json", "--seed", 4, "--dtype", "float32")
    assert done.exit_code == 0
    record = json.loads(done.stdout)
    assert record["passed"] and record["schedules"] == 3 and record["seed"] == 4
    assert record["model"] == str(model) and record["dtype"] == "float32" and record["backend"] == "cpu"


def test_different_answers_exit_with_1(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(*given: object) -> EngineParts:
        parts = build_engine(*given)  # type: ignore[arg-type]
        return replace(parts, executable=RowNoise(parts.executable))

    monkeypatch.setattr("pelton.measure.verify.start.build_engine", noisy)
    done = verify(model, *FEW)
    assert done.exit_code == 1
    assert done.stdout.startswith("DIFFERENT") and done.stdout.splitlines()[-1].startswith("FAILED")


def test_one_schedule_is_run_again(model: Path) -> None:
    done = verify(model, *FEW[2:], "--only", 20, "--json")
    record = json.loads(done.stdout)
    assert done.exit_code == 0 and record["schedules"] == 1 and len(record["not_run"]) == 719


def test_a_time_box_alone_sets_no_number(model: Path) -> None:
    done = verify(model, *FEW[2:], "--minutes", 0.02, "--json")
    record = json.loads(done.stdout)
    assert done.exit_code == 0 and record["schedules"] >= 1 and record["seconds"] >= 1.2


def test_prompts_of_a_file_are_asked_too(model: Path, tmp_path: Path) -> None:
    """A prompt longer than the built-in ones makes the steps and the cache larger."""
    lines = [
        {"prompt": "a b c " * 60},
        {"messages": [{"role": "user", "content": "What is a mill wheel?"}]},
        {"prompt_token_ids": [1, 2, 3, 4] * 10},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    done = verify(model, *FEW, "--prompts", file)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": 4}', "line 2: prompt is no text"),
        ('{"messages": [4]}', r"line 2: messages\[0\] is of type int"),
        ('{"prompt_token_ids": [1, 300]}', "line 2 has token 300, and the model has 272"),
        (json.dumps({"prompt": "x" * 600}), "line 2 has 600 tokens, and there is room for 506"),
    ],
)
def test_a_bad_line_is_an_error_that_names_it(model: Path, tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "good"}\n' + line + "\n", encoding="utf-8")
    assert re.search(told, refusal(model, *FEW, "--prompts", file))


def test_answers_that_leave_no_room_for_a_prompt_are_refused(model: Path) -> None:
    assert "--max-tokens 512" in refusal(model, "--max-tokens", 512)


def test_answers_beyond_the_memory_are_refused_by_the_flags_name(model: Path) -> None:
    assert refusal(model, "--max-tokens", 2_000_000_000).startswith("--max-tokens 2000000000 ")


def test_the_length_is_set_and_positions_with_it(model: Path) -> None:
    scaled = '{"rope_scaling": {"rope_type": "dynamic", "factor": 40.0}}'
    done = verify(model, *FEW, "--hf-overrides", scaled, "--max-model-len", "20k")
    assert done.exit_code == 0, done.output
    assert "the model takes 6 tokens" in refusal(model, *FEW, "--max-model-len", 6)
    assert "is beyond the 512 tokens" in refusal(model, *FEW, "--max-model-len", 600)
    small = ("--hf-overrides", scaled, "--max-model-len", "20k", "--kv-cache-memory-bytes", "1M")
    assert "--max-model-len 20000 needs" in refusal(model, *FEW, *small)


def test_a_tokenizer_that_is_not_there_is_named(model: Path) -> None:
    assert refusal(model, "--tokenizer", "/absent").startswith("--tokenizer /absent: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--schedules 0", "'--schedules': 0 is not"),
        ("--minutes 0", "'--minutes': 0.0 is not"),
        ("--minutes nan", "'--minutes': nan is no number of minutes"),
        ("--minutes inf", "'--minutes': inf is no number of minutes"),
        ("--dtype int3", "'--dtype': 'int3' is not"),
        ("--only -1", "'--only': -1 is not"),
        ("--only 3 --schedules 4", "--only 3 runs that schedule alone. Leave --schedules 4 out."),
        ("--only 3 --minutes 0.5", "--only 3 runs that schedule alone. Leave --minutes 0.5 out."),
        ("--only 3 --resume run.json", "--only 3 runs that schedule alone. Leave --resume run.json out."),
        ("--backend foo", "--backend foo cannot work. It must be one of cpu, reference"),
        ("--kv-codec foo", "--kv-codec foo cannot work. It must be "),
        ("--threads -1", "--threads -1 cannot work"),
        ("--kv-cache-memory-bytes many", "'--kv-cache-memory-bytes': 'many' is no number of bytes"),
        ("--prompts absent", "'--prompts': File 'absent' does not exist"),
    ],
)
def test_impossible_values_exit_with_2_and_are_named(model: Path, words: str, told: str) -> None:
    done = verify(model, *words.split())
    assert done.exit_code == 2 and told in " ".join(done.output.split()), done.output


def test_a_run_goes_on_from_its_file_and_tells_the_whole(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    words = (*FEW[2:], "--json", "--resume", file, "--schedules")
    whole = json.loads(verify(model, *FEW[2:], "--json", "--schedules", 5).stdout)
    first = json.loads(verify(model, *words, 2).stdout)
    both = json.loads(verify(model, *words, 5).stdout)
    again = json.loads(verify(model, *words, 5).stdout)
    assert first["schedules"] == 2 and all(cell in whole["cells"] for cell in first["cells"])
    for name in ("schedules", "answers", "tokens", "steps", "events", "cells", "not_run", "passed"):
        assert both[name] == whole[name] == again[name], name
    assert both["seconds"] > first["seconds"]


def test_a_file_of_another_run_is_refused(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    words = (*FEW, "--resume", file)
    assert verify(model, *words).exit_code == 0
    others = (
        (("--seed", 1), "seed was 0, and now it is 1"),
        (("--dtype", "float32"), "dtype was "),
        (("--hf-overrides", '{"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}'), "computation was "),
        (("--quantization", "int8"), "computation was "),
    )
    for more, told in others:
        said = refusal(model, *words, *more)
        assert said.startswith(f"--resume {file} is of another run: ") and told in said
    file.write_text("{}")
    assert "is no file that pelton verify wrote" in refusal(model, *words)
    done = verify(model, *FEW, "--resume", tmp_path / "absent" / "run.json")
    assert done.exit_code == 2 and "there is no folder" in done.output
