"""`pelton simulate`: the same words give the same output; what it refuses; tables, plots and files."""

import json
from pathlib import Path

import pytest
from tests.cli.running import invoke, modules_after

from pelton.cli.bars import HEIGHTS, bar

MACHINE = ("--read-rate", "20G", "--matrix-rate", "5e11", "--num-blocks", "600", "--max-model-len", "2048")

FILES = (
    "mooncake_conversation.jsonl",
    "azure_llm_2023_code.csv",
    "servegen_clients.jsonl",
    "sharegpt_first_turn_lengths.csv",
)


def shown(*words: str) -> str:
    result = invoke("simulate", *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    stem = "Water falls on the wheel, and the wheel turns the mill that grinds the corn of the valley. " * 8
    rows: list[dict[str, object]] = [{"prompt": f"{stem} {number}"} for number in range(5)]
    rows.append({"prompt_token_ids": list(range(100, 300))})
    rows.append({"messages": [{"role": "user", "content": "Why?"}]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("file", FILES)
def test_the_same_words_give_the_same_figures(file: str, data: Path, smollm2: Path) -> None:
    words = (str(data / "traces" / file), "--requests", "40", "--request-rate", "3", *MACHINE, "--json")
    first = shown(*words)
    assert first == shown(*words)
    table = json.loads(first)
    assert table["completed"] == table["num_prompts"] == 40 and table["failed"] == 0
    assert table["step_times"] == "given" and table["kv_blocks"] == 600 and table["max_model_len"] == 2048
    assert 0 < table["p50_ttft_ms"] <= table["p90_ttft_ms"] <= table["p99_ttft_ms"]
    assert table["scale"] <= 1 and table["cut_requests"] == 0
    assert len(table["course"]) == min(120, table["calls"])
    assert (table["prefix_hit_rate_unlimited"] is not None) == ("mooncake" in file)


def test_prefixes_of_a_trace_are_found(data: Path, smollm2: Path) -> None:
    words = (str(data / "traces" / "mooncake_synthetic.jsonl"), "--requests", "60", *MACHINE[:-2], "--json")
    table = json.loads(shown(*words))
    assert table["prefix_hit_rate"] > 0.02 and table["prefix_hit_rate_unlimited"] > 0.02
    off = json.loads(shown(*words, "--no-enable-prefix-caching"))
    assert off["prefix_hit_rate"] in (None, 0) and off["computed_tokens"] > table["computed_tokens"]


def test_a_table_for_people(data: Path, smollm2: Path, tmp_path: Path) -> None:
    trace, kept = str(data / "traces" / "mooncake_conversation.jsonl"), tmp_path / "each.jsonl"
    words = ("--requests", "30", "--speed", "2", "--goodput", "ttft:900", *MACHINE, "--save-detailed", str(kept))
    text = shown(trace, *words)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line)
    assert "all lengths times 0." in text and "step times given" in text
    assert "Time to First Token, ms" in text and "kept the goals" in lines["goodput"]
    assert "a cache without limit" in lines["prefix"]
    assert all(f"\n{name}" in text for name in ("KV use ", "running ", "waiting ", "tokens/s "))
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [row["request"] for row in rows] == list(range(30)) and all(row["ttft"] > 0 for row in rows)


def test_a_faster_machine_is_faster(data: Path, smollm2: Path) -> None:
    trace = str(data / "traces" / "azure_llm_2023_conv.csv")
    rest = ("--requests", "30", "--request-rate", "1", "--num-blocks", "600", "--max-model-len", "2048", "--json")
    slow = json.loads(shown(trace, "--read-rate", "5G", "--matrix-rate", "5e10", *rest))
    fast = json.loads(shown(trace, "--read-rate", "20G", "--matrix-rate", "5e11", *rest))
    assert slow["p50_ttft_ms"] > 3 * fast["p50_ttft_ms"] and slow["p50_itl_ms"] > 2 * fast["p50_itl_ms"]


def test_prompts_by_cache_size(prompts: Path, smollm2: Path) -> None:
    words = ("--prompts", str(prompts), *MACHINE)
    assert shown(*words) == shown(*words)
    table = json.loads(shown(*words, "--json"))
    sizes = table["sizes"]
    assert table["prompts"] == 7 and sizes[-1]["blocks"] is None and sizes[-1]["found_tokens"] > 4 * 96
    assert sizes[-1]["found_tokens"] == sizes[-2]["found_tokens"]
    assert [row["found_tokens"] for row in sizes] == sorted(row["found_tokens"] for row in sizes)
    assert "without limit" in shown(*words) and "s per further GiB" in shown(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Name a TRACE, or prompts by --prompts"),
        (("smollm2", "x.jsonl"), "'x.jsonl' is too many. A model is named by --model"),
        (("x.jsonl", "--prompts", "y.jsonl"), "Name a TRACE, or prompts by --prompts"),
        (("x.jsonl", "--read-rate", "1G"), "--read-rate and --matrix-rate go together"),
        (("x.jsonl", "--calibrate", "--read-rate", "1G", "--matrix-rate", "1e9"), "leave one out"),
        (("x.jsonl", "--read-rate", "-1", "--matrix-rate", "1e9"), "--read-rate"),
        (("x.jsonl", "--backend", "reference"), "--backend reference is not simulated"),
        (("x.jsonl", "--scale", "0"), "--scale"),
        (("x.jsonl", "--goodput", "ttft"), "--goodput"),
        (("x.jsonl", "--scheduling-policy", "lru"), "--scheduling-policy lru cannot work"),
        (("x.jsonl", "--read-rate", "fast", "--matrix-rate", "1e9"), "is no number of bytes a second"),
        (
            ("x.jsonl", "--read-rate", "1G", "--matrix-rate", "500G"),
            "is no number of FLOPs a second; write it like 5e11",
        ),
        (("--prompts", "x.jsonl", "--speed", "2"), "--speed is about a trace"),
        (("--prompts", "x.jsonl", "--goodput", "ttft:5"), "--goodput is about a trace"),
        (("--prompts", "x.jsonl", "--requests", "5"), "--num-prompts is about a trace"),
        (("--prompts", "x.jsonl", "--seed", "0"), "--seed is about a trace"),
        (("--prompts", "x.jsonl", "--save-detailed", "y"), "--save-detailed is about a trace"),
        (
            ("x.jsonl", "--preemption-mode", "swap", "--swap-space-bytes", "0"),
            "--swap-space-bytes 0 cannot work together",
        ),
    ],
)
def test_words_that_cannot_work(words: tuple[str, ...], said: str) -> None:
    result = invoke("simulate", *words)
    assert result.exit_code == 2 and said in " ".join(result.stderr.split())


def test_files_that_cannot_be_read(tmp_path: Path, prompts: Path, smollm2: Path) -> None:
    text = tmp_path / "text"
    text.write_text("once upon a time\n")
    for words, said in (
        (("missing.jsonl",), "missing.jsonl cannot be read"),
        ((str(text),), "is no trace that is known"),
        ((str(text), "--trace-format", "azure"), "line 1: 'once upon a time' are not the columns TIMESTAMP,"),
        (("--prompts", "missing.jsonl"), "--prompts missing.jsonl is no file"),
        (("--prompts", str(text)), "line 1, is no JSON"),
    ):
        result = invoke("simulate", *words, *MACHINE)
        assert result.exit_code == 1 and said in result.stderr, (words, result.stderr)
    prompts.write_text('{"prompt": "good"}\n{"text": "bad"}\n')
    assert "prompt 2: It has no prompt" in invoke("simulate", "--prompts", str(prompts), *MACHINE).stderr
    prompts.write_text('{"prompt": "good", "prompt_token_ids": [1, 2]}\n')
    two = invoke("simulate", "--prompts", str(prompts), *MACHINE).stderr
    assert "prompt 1: It has prompt and prompt_token_ids. Give it one of these" in two
    both = invoke("simulate", str(text), "--speed", "2", "--request-rate", "2", *MACHINE)
    assert both.exit_code in (1, 2)


def test_it_needs_no_torch(data: Path, smollm2: Path) -> None:
    modules = modules_after(
        "simulate", str(data / "traces" / "azure_llm_2023_code.csv"), "--requests", "5", *MACHINE, "--disable-tqdm"
    )
    assert "torch" not in modules


def test_a_line_of_blocks() -> None:
    assert bar([0.0, 1.0, 4.0, 8.0]) == HEIGHTS[0] + HEIGHTS[1] + HEIGHTS[4] + HEIGHTS[8]
    assert bar([]) == "" and bar([0.0, 0.0]) == "  "
    assert len(bar([1.0] * 500)) == 60 and bar([0.001, 1000.0])[0] == HEIGHTS[1], "what is there is seen"
