"""`pelton tokens`: counts against figures computed elsewhere, what they cost, and what is said where none is known."""

import csv
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.cli.running import invoke, modules_after

from pelton.program.module import Module

LONGEST = 20_000  # characters of each text that were counted
# Texts of the table that are files; those in udhr/ have their own names.
TEXTS = {
    "zh_classical_novel": "longtext/zh_hongloumeng_ch1_60.txt",
    "zh_guwen": "ppl/zh_guwenguanzhi.txt",
    "zh_wiki_modern": "ppl/zh_wiki_modern.txt",
    "en_wiki(wikitext2)": "ppl/wikitext2_raw_test_part1.txt",
}
# Texts that are one field of all rows of a file, a line each.
FIELDS = {
    "zh_user_prompts(system_prompts_zh)": ("prompts/system_prompts_zh.jsonl", "prompt"),
    "zh_exam(gaokao_zh)": ("prompts/gaokao_zh.jsonl", "question"),
    "zht_wiki(drcd)": ("longtext/zht_drcd_reading.jsonl", "context"),
}
VOCABULARIES = {"qwen3": "qwen3", "qwen3.5": "qwen3.5", "glm-4.5v": "glm-4.5v", "deepseek-v3": "deepseek-v3.1"}


def known(data: Path, tokenizer: str) -> dict[str, list[str]]:
    """Text -> characters, bytes, tokens and tokens per 1000 characters, of those that are files."""
    with (data / "tokenizer" / "tokens_per_1000_chars.csv").open(encoding="utf-8") as table:
        rows = [row for row in csv.DictReader(table) if row["tokenizer"] == tokenizer]
    return {
        row["text"]: [row["chars"], row["utf8_bytes"], row["tokens"], row["tokens_per_1000_chars"]]
        for row in rows
        if row["text"] in {*TEXTS, *FIELDS} or row["text"].startswith("udhr/")
    }


def text_of(data: Path, name: str) -> str:
    """A text of the table by its name."""
    if name not in FIELDS:
        return (data / TEXTS.get(name, f"tokenizer/{name}.txt")).read_text(encoding="utf-8")
    file, field = FIELDS[name]
    return "\n".join(json.loads(line)[field] for line in (data / file).read_text(encoding="utf-8").splitlines())


def counted(data: Path, folder: Path, texts: list[str], model: str) -> dict[str, list[str]]:
    """The same as the command tells it."""
    for name in texts:
        (folder / name.replace("/", "_")).write_text(text_of(data, name)[:LONGEST], encoding="utf-8")
    files = [str(folder / name.replace("/", "_")) for name in texts]
    result = invoke("tokens", *files, "--model", model, "--json")
    assert result.exit_code == 0, result.stderr
    found = {}
    for name, record in zip(texts, json.loads(result.stdout)["texts"], strict=True):
        (row,) = record["models"]
        per_1000 = f"{row['tokens_per_1000_characters']:.1f}"
        found[name] = [str(record["characters"]), str(record["bytes"]), str(row["tokens"]), per_1000]
    return found


@pytest.mark.parametrize("tokenizer", VOCABULARIES)
def test_counts_are_those_of_the_library(data: Path, tmp_path: Path, tokenizer: str) -> None:
    table = known(data, tokenizer)
    assert len(table) == 23
    model = str(data / "tokenizer" / "vocab" / f"{VOCABULARIES[tokenizer]}.tokenizer.json.xz")
    assert counted(data, tmp_path, list(table), model) == table


@pytest.mark.slow
def test_counts_by_the_vocabulary_of_a_gguf(data: Path, gemma3: Path, tmp_path: Path) -> None:
    table = known(data, "gemma3")
    assert counted(data, tmp_path, list(table), str(gemma3)) == table


def test_a_table_for_people(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The capital of France is Paris.\n")
    result = invoke("tokens", str(tmp_path / "a.txt"), "--model", "smollm2", "--price-input", "2")
    assert result.stderr == ""
    title, header, row = result.stdout.splitlines()
    assert title == f"{tmp_path}/a.txt: 32 characters, 32 bytes"
    assert header.split("  ")[0] == "model"
    assert row.split() == ["smollm2", "8", "250.0", "1.8", "G", "180.0", "KiB", "1.6e-05"]
    assert "price" not in invoke("tokens", str(tmp_path / "a.txt")).stdout


def test_costs_are_those_of_the_program(smollm2: Path) -> None:
    text = "The capital of France is Paris, and that of Italy is Rome. " * 20
    told = json.loads(invoke("tokens", "-", "--model", "smollm2", "--json", stdin=text).stdout)
    (row,) = told["texts"][0]["models"]
    shown = json.loads(invoke("program", "smollm2", "--tokens", str(row["tokens"]), "--json").stdout)
    assert row["prefill_flops"] == shown["total"]["flops"]
    assert row["kv_bytes"] == shown["kv_bytes_per_token"] * row["tokens"]
    assert told["texts"][0]["text"] == "standard input"
    assert told["total"] == told["texts"][0]["models"]
    assert row["relative"] == {"tokens": 1.0, "prefill_flops": 1.0, "kv_bytes": 1.0, "price": None}


def test_several_side_by_side(smollm2: Path, data: Path, tmp_path: Path) -> None:
    vocabulary = str(data / "tokenizer" / "vocab" / "qwen3.tokenizer.json.xz")
    for name, text in (("a", "你好，世界"), ("b", "Hello, world")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ("tokens", str(tmp_path / "a"), str(tmp_path / "b"), "-m", "smollm2", "-m", vocabulary)
    prices = ("--price-input", "1", "--price-input", f"{vocabulary}=3")
    shown = invoke(*words, *prices)
    assert shown.stderr == "", "a tokenizer.json alone is asked for nothing else"
    blocks = [block.splitlines() for block in shown.stdout.split("\n\n")]
    assert [block[0].rpartition("/")[2] for block in blocks] == [
        "a: 5 characters, 15 bytes", "b: 12 characters, 12 bytes", "all texts: 17 characters, 27 bytes",
    ]  # fmt: skip
    assert blocks[0][3].split()[-4:-2] == ["-", "-"]
    told = json.loads(invoke(*words, *prices, "--json").stdout)
    mine, theirs = told["total"]
    assert mine["tokens"] == sum(record["models"][0]["tokens"] for record in told["texts"])
    assert theirs["prefill_flops"] is None and theirs["kv_bytes"] is None
    assert theirs["relative"]["tokens"] == theirs["tokens"] / mine["tokens"]
    assert theirs["price"] == pytest.approx(3 * theirs["tokens"] / 1e6)
    assert mine["price"] == pytest.approx(mine["tokens"] / 1e6)


def test_folders_and_files_of_a_tokenizer(data: Path, tmp_path: Path) -> None:
    packed = data / "tokenizer" / "vocab" / "qwen3.tokenizer.json.xz"
    file = tmp_path / "tokenizer.json"
    file.write_bytes(lzma.decompress(packed.read_bytes()))
    told = [invoke("tokens", "-", "-m", str(path), "--json", stdin="Hello, world").stdout for path in (tmp_path, file)]
    assert [json.loads(text)["total"][0]["tokens"] for text in told] == [3, 3]


def test_a_packed_file_that_is_no_tokenizer_is_told_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "t.json.xz"
    file.write_bytes(lzma.compress(b"[]"))
    result = invoke("tokens", "-", "-m", str(file), stdin="Hello")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {file}: not a usable tokenizer.json (")


def test_a_model_of_an_unknown_family_is_counted_for(data: Path, tmp_path: Path) -> None:
    packed = data / "tokenizer" / "vocab" / "qwen3.tokenizer.json.xz"
    (tmp_path / "tokenizer.json").write_bytes(lzma.decompress(packed.read_bytes()))
    (tmp_path / "config.json").write_text('{"model_type": "odd", "architectures": ["OddForCausalLM"]}')
    save_file({"x": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    result = invoke("tokens", "-", "-m", str(tmp_path), "--json", stdin="Hello, world")
    assert json.loads(result.stdout)["total"][0]["prefill_flops"] is None
    assert result.stderr.startswith(f"note: The costs of {tmp_path} are not known: ")


def test_a_text_beyond_the_context_is_several_prompts(smollm2: Path) -> None:
    result = invoke("tokens", "-", "-m", "smollm2", "--json", stdin="word " * 9000)
    assert result.stderr == (
        "note: A text is longer than the context of smollm2, 8192 tokens: its costs are those of several prompts.\n"
    )
    assert json.loads(result.stdout)["total"][0]["pieces"] == 2


def test_a_whole_context_is_not_computed_for_a_short_text(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def flops(module: Module, tokens: int) -> int:
        asked.append(tokens)
        return 0

    monkeypatch.setattr("pelton.measure.tokens.prefill_flops", flops)
    assert invoke("tokens", "-", stdin="word " * 30).exit_code == 0
    assert invoke("tokens", "-", stdin="").exit_code == 0
    assert len(asked) == 1 and asked[0] < 100


def test_nothing_is_nothing(smollm2: Path) -> None:
    (row,) = json.loads(invoke("tokens", "-", "--json", stdin="").stdout)["total"]
    assert (row["tokens"], row["prefill_flops"], row["kv_bytes"], row["pieces"]) == (0, 0, 0, 1)
    assert row["relative"]["tokens"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("/no/file",), "/no/file cannot be read: No such file or directory."),
        (("-", "--price-input", "cheap"), "--price-input cheap is no price."),
        (("-", "--price-input", "smollm2=-1"), "--price-input smollm2=-1 is no price."),
        (("-", "--price-input", "gpt=1"), "'gpt' is none of the models: smollm2."),
        (("-", "-m", "no-such-model"), "Unknown model 'no-such-model'."),
    ],
)
def test_what_cannot_work(smollm2: Path, words: tuple[str, ...], told: str) -> None:
    result = invoke("tokens", *words, stdin="text")
    assert result.exit_code in (1, 2)
    assert told in result.stderr


def test_no_text(smollm2: Path) -> None:
    result = invoke("tokens", "-", stdin=b"ok \xff")
    assert (result.exit_code, result.stderr) == (
        1, "error: standard input is not UTF-8 text (byte 3). Convert it to UTF-8.\n",
    )  # fmt: skip


def test_no_kernels_and_no_torch_are_loaded(smollm2: Path) -> None:
    modules = modules_after("tokens", "-", "-m", "smollm2", stdin=b"text")
    assert (
        not {"torch", "transformers", "huggingface_hub", "pelton.engine.llm", "pelton.backends.cpu._native"} & modules
    )
