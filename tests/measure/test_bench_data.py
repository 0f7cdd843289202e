"""The data sets of workloads, made as docs/bench.md says: they are enough, and what is missing in one is named."""

import json
from pathlib import Path
from random import Random

import pytest

from pelton.core.errors import SettingError
from pelton.measure.bench import WORKLOADS
from pelton.measure.bench.workload import WorkloadOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"
FILES: dict[str, tuple[dict[str, object], ...]] = {
    "prompts/arena_hard.jsonl": ({"prompt": "a question"},),
    "prompts/mt_bench.jsonl": ({"turns": ["first", "second"]},),
    "prompts/humaneval_infill_singleline.jsonl": ({"prompt": "def f(x):\n"},),
    "longtext/nq_rag_passages.jsonl": ({"question": "who", "passage": "he"},),
    "tools/bfcl_v4_multi_turn_func_docs.jsonl": ({"name": "f", "parameters": {}},),
    "tools/bfcl_v4_sample.jsonl": ({"question": [[{"role": "user", "content": "do"}]]},),
    "prompts/gsm8k_test.jsonl": tuple({"question": f"{n}?", "answer": f"{n}"} for n in range(5)),
}
LENGTHS = "traces/sharegpt_first_turn_lengths.csv"
USED = {
    "chat": ["prompts/arena_hard.jsonl", "prompts/mt_bench.jsonl", LENGTHS],
    "ide": ["prompts/humaneval_infill_singleline.jsonl"],
    "rag": ["longtext/nq_rag_passages.jsonl"],
    "agent": ["tools/bfcl_v4_multi_turn_func_docs.jsonl", "tools/bfcl_v4_sample.jsonl"],
    "batch": ["prompts/gsm8k_test.jsonl"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "traces").mkdir()
    (tmp_path / LENGTHS).write_text("output_tokens_qwen3\n71\n")
    return tmp_path


def make(name: str, folder: Path) -> int:
    return len(WORKLOADS.get(name)().samples(WorkloadOptions(5, data=folder, random=Random(0))))


@pytest.mark.parametrize("name", USED)
def test_what_the_page_asks_for_is_enough(name: str, folder: Path) -> None:
    for other in [file for used in USED if used != name for file in USED[used]]:
        (folder / other).unlink()
    assert make(name, folder) == 5
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` | `")]
    for file in USED[name]:
        assert f"`{file}`" in row
        for key in FILES[file][0] if file in FILES else ("output_tokens_qwen3",):
            assert f"`{key}`" in row, key


@pytest.mark.parametrize(
    ("name", "file", "text", "told"),
    [
        ("chat", "prompts/arena_hard.jsonl", '{"question": "a"}\n', "row 1 has no 'prompt'. Each row needs prompt."),
        ("chat", "prompts/mt_bench.jsonl", '{"turns": "a"}\n', "mt_bench.jsonl has turns that are no list"),
        ("chat", LENGTHS, "tokens\n3\n", "has no column output_tokens_qwen3 of whole numbers"),
        ("chat", LENGTHS, "output_tokens_qwen3\n", "has no rows"),
        ("agent", "tools/bfcl_v4_sample.jsonl", '{"question": "a"}\n', "a question of another form. Write it like"),
        ("rag", "longtext/nq_rag_passages.jsonl", "\n", "has no rows"),
        ("batch", "prompts/gsm8k_test.jsonl", '{"question": "a", "answer": "b"}\n', "too few rows"),
    ],
)
def test_what_is_missing_is_named(name: str, file: str, text: str, told: str, folder: Path) -> None:
    (folder / file).write_text(text)
    with pytest.raises(SettingError) as caught:
        make(name, folder)
    assert told in str(caught.value)
