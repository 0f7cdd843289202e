"""Every workload: as many samples as asked for, repeatable, with something to say and a length to answer in."""

import json
from pathlib import Path
from random import Random

import pytest
from registry_entries import entries

from pelton.core.errors import SettingError
from pelton.measure.bench import WORKLOADS
from pelton.measure.bench.conversation import chains
from pelton.measure.bench.workload import Sample, WorkloadOptions

NEEDS_DATA = ("chat", "ide", "rag", "agent", "batch")


def encode(text: str) -> tuple[int, ...]:
    return tuple(len(word) for word in text.split())


def options(count: int, data: Path | None, tmp_path: Path, seed: int = 0, **more: object) -> WorkloadOptions:
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"prompt {n}", "output_len": 3}) + "\n" for n in range(5)))
    return WorkloadOptions(count, data=data, path=own, encode=encode, random=Random(seed), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", entries("workload"))
def test_makes_what_is_asked_for(name: str, data: Path, tmp_path: Path) -> None:
    made = WORKLOADS.get(name)().samples(options(40, data, tmp_path))
    assert len(made) == 40
    for place, sample in enumerate(made):
        assert sample.follows is None or sample.follows == place - 1
        assert sample.follows is None or {message["role"] for message in sample.messages} == {"user"}
        assert (sample.prompt is None) != (not sample.messages)
        assert sample.prompt is None or len(sample.prompt) > 0
        assert 1 <= sample.output_len <= 256
    assert made == WORKLOADS.get(name)().samples(options(40, data, tmp_path))
    shorter = WORKLOADS.get(name)().samples(options(40, data, tmp_path, output_len=7))
    assert {sample.output_len for sample in shorter} == {7}


@pytest.mark.parametrize("name", [name for name in entries("workload") if name != "custom"])
def test_another_seed_gives_other_samples(name: str, data: Path, tmp_path: Path) -> None:
    first, second = (WORKLOADS.get(name)().samples(options(40, data, tmp_path, seed)) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("name", NEEDS_DATA)
def test_says_what_data_it_needs(name: str, tmp_path: Path) -> None:
    assert name in entries("workload")
    with pytest.raises(SettingError, match="--data"):
        WORKLOADS.get(name)().samples(options(4, None, tmp_path))
    with pytest.raises(SettingError, match="has no"):
        WORKLOADS.get(name)().samples(options(4, tmp_path, tmp_path))


def test_exact_lengths_and_common_prefixes(tmp_path: Path) -> None:
    made = WORKLOADS.get("random")().samples(options(9, None, tmp_path, input_len=50, prefix_len=20))
    assert {len(sample.prompt or ()) for sample in made} == {70}
    assert len({(sample.prompt or ())[:20] for sample in made}) == 1
    assert len({sample.prompt for sample in made}) == 9
    repeated = WORKLOADS.get("prefix_repetition")().samples(options(32, None, tmp_path, input_len=5, prefix_len=30))
    assert {len(sample.prompt or ()) for sample in repeated} == {35}
    assert len({(sample.prompt or ())[:30] for sample in repeated}) == 8


def test_agents_have_three_turns_and_make_up_no_answer(data: Path, tmp_path: Path) -> None:
    made = WORKLOADS.get("agent")().samples(options(7, data, tmp_path))
    assert chains(made) == [[0, 1, 2], [3, 4, 5], [6]]
    assert [len(sample.messages) for sample in made] == [2, 1, 1, 2, 1, 1, 2]
    assert made[3].messages[0] == made[0].messages[0]


def test_a_chat_has_one_turn_or_two(data: Path, tmp_path: Path) -> None:
    made = WORKLOADS.get("chat")().samples(options(300, data, tmp_path))
    lengths = {len(chain) for chain in chains(made)}
    assert lengths == {1, 2} and len(made) == 300


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "--dataset-path .*line 2"),
        ("[1]", "no JSON object"),
        ('{"text": "a"}', "request 2 has no prompt"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "request 2 has prompt and prompt_token_ids.* Give it one of"),
        ('{"prompt": "a", "messages": []}', "request 2 has prompt and messages"),
        ('{"prompt_token_ids": "a"}', "request 2 has a prompt_token_ids that is none"),
    ],
)
def test_a_bad_line_is_named(line: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(SettingError, match=what):
        WORKLOADS.get("custom")().samples(WorkloadOptions(2, path=file))


def test_a_list_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "sets.json"
    file.write_text('{"short": ["a", "b"], "long": ["c"]}')
    made = WORKLOADS.get("custom")().samples(WorkloadOptions(3, path=Path(f"{file}#short")))
    assert [sample.prompt for sample in made] == ["a", "b", "a"]
    with pytest.raises(SettingError, match="short, long"):
        WORKLOADS.get("custom")().samples(WorkloadOptions(3, path=Path(f"{file}#none")))
    assert isinstance(made[0], Sample)
    file.write_text("{")
    with pytest.raises(SettingError, match="--dataset-path .* is no JSON"):
        WORKLOADS.get("custom")().samples(WorkloadOptions(3, path=Path(f"{file}#none")))
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(SettingError, match="--dataset-path .* is no text in UTF-8: byte 12"):
        WORKLOADS.get("custom")().samples(WorkloadOptions(3, path=file))
