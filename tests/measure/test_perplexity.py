"""Perplexity against the plain computation with transformers, in both conventions; and the command."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.verify_parts import tiny_talker
from transformers import LlamaForCausalLM

from pelton import LLM
from pelton.cli.main import cli
from pelton.core.clock import SystemClock
from pelton.core.errors import RequestError
from pelton.measure.perplexity import CONVENTIONS, HF, LLAMA_CPP, Plan, Report, Tally, perplexity, windows

CONTEXT = 512
START = 257  # the token <start>
TEXT = "".join(f"The {place}. word of a text is {'long' if place % 7 else 'kürzer'}.\n" for place in range(40))
EXACT = 1e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of 512 tokens' context, with a token that starts a text."""
    folder = tiny_talker(tmp_path_factory.mktemp("scored"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token": "<start>"}))
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", max_num_seqs=4, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def nats(oracle: LlamaForCausalLM, ids: list[int]) -> list[float]:
    """Of each token but the first, in fp64 over logits of fp32."""
    with torch.no_grad():
        logits = oracle(torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
    return (-logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]]).tolist()


def guide(oracle: LlamaForCausalLM, ids: list[int], size: int, stride: int) -> list[float]:
    """Hugging Face's guide to the perplexity of models of fixed length."""
    found, before = [], 0
    for begin in range(0, len(ids), stride):
        end = min(begin + size, len(ids))
        target = end - before
        found += nats(oracle, ids[begin:end])[-target:]
        before = end
        if end == len(ids):
            break
    return found


def halves(oracle: LlamaForCausalLM, ids: list[int], size: int, bos: int | None) -> list[float]:
    """What llama.cpp's tool counts: logits from n_ctx / 2 on, of the tokens behind them."""
    found = []
    for chunk in range(len(ids) // size):
        window = ids[chunk * size : (chunk + 1) * size]
        if bos is not None:
            window[0] = bos
        found += nats(oracle, window)[size // 2 :]
    return found


def expect(report: Report, values: list[float]) -> None:
    assert report.tally.count == len(values)
    assert report.tally.mean == pytest.approx(np.mean(values), rel=EXACT)
    assert report.tally.perplexity == pytest.approx(math.exp(np.mean(values)), rel=10 * EXACT)
    error = math.exp(np.mean(values)) * np.std(values) / math.sqrt(len(values) - 1)
    assert report.tally.error == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("size", "stride"), [(64, 64), (64, 32), (100, 7), (511, 511), (511, 500), (2, 1)])
def test_sliding_windows_are_the_guides(llm: LLM, oracle: LlamaForCausalLM, size: int, stride: int, bos: bool) -> None:
    text = TEXT[:300] if stride < 10 else TEXT
    ids = [START] * bos + list(text.encode())
    report = perplexity(llm, text, Plan(size, stride, HF, bos), SystemClock())
    expect(report, guide(oracle, ids, size, stride))
    if stride < size:  # all but the first token, of one byte where it is no BOS
        assert report.bytes == len(text.encode()) - (not bos)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("size", [3, 32, 33, 400])
def test_halves_are_those_of_llama_cpp(llm: LLM, oracle: LlamaForCausalLM, size: int, bos: bool) -> None:
    ids = [START] * bos + list(TEXT.encode()[:-1])  # without the last newline
    report = perplexity(llm, TEXT, Plan(size, size, LLAMA_CPP, bos), SystemClock())
    expect(report, halves(oracle, ids, size, START if bos else None))
    assert report.bytes == report.tally.count


def test_special_tokens_are_read_as_each_convention_does(llm: LLM) -> None:
    text = "a<start>b" * 20
    for convention, tokens in ((HF, 60), (LLAMA_CPP, 180)):
        report = perplexity(llm, text, Plan(20, 20, convention), SystemClock())
        assert report.windows == tokens // 20


def test_positions_hold_what_stands_there(llm: LLM, oracle: LlamaForCausalLM) -> None:
    """All that was scored, by the number of tokens before."""
    report = perplexity(llm, TEXT, Plan(100, 50), SystemClock())
    ids = list(TEXT.encode())
    starts = [window for window in range(0, len(ids), 50) if window == 0 or window + 50 < len(ids)]
    scored = [nats(oracle, ids[start : start + 100]) for start in starts]
    assert [(least, most) for least, most, _ in report.by_position] == [(1, 15), (16, 31), (32, 63), (64, 99)]
    for least, most, tally in report.by_position:
        values = [value for window in scored for value in window[least - 1 : most]]
        assert tally.count == len(values)
        assert tally.mean == pytest.approx(np.mean(values), rel=EXACT)


def test_progress_is_told(llm: LLM) -> None:
    heard: list[tuple[int, int, int]] = []
    report = perplexity(
        llm, TEXT, Plan(300, 300), SystemClock(), lambda done, of, tally: heard.append((done, of, tally.count))
    )
    assert heard[-1] == (report.windows, report.windows, report.tally.count)


def test_bits_per_byte_of_an_even_guess() -> None:
    """A model that knows nothing of bytes spends 8 bits on each."""
    tally = Tally()
    tally.add([math.log(256)] * 50)
    report = Report(Plan(8, 8), 1, tally, 50, 1.0)
    assert report.bits_per_byte == pytest.approx(8.0)
    assert report.record()["perplexity"] == pytest.approx(256.0)
    assert tally.error == 0.0
    assert Report(Plan(8, 8), 0, Tally(), 0, 0.0).record()["perplexity"] is None


@given(st.integers(2, 60), st.integers(2, 20), st.integers(1, 20), st.sampled_from(CONVENTIONS))
def test_a_token_counts_at_most_once(length: int, size: int, stride: int, convention: str) -> None:
    plan = Plan(size, size if convention == LLAMA_CPP else min(stride, size), convention)
    ids = range(1000, 1000 + length)
    try:
        found = windows(ids, plan)
    except RequestError:
        assert length < size or size == 2
        return
    counted = [token for window in found for token in window.ids[window.first :]]
    assert len(counted) == len(set(counted)) > 0
    assert all(window.first >= 1 and len(window.ids) <= size for window in found)
    if convention == HF and plan.stride < size:
        assert sorted(counted) == list(ids)[1:]


BAD: list[tuple[Plan, str, str]] = [
    (Plan(CONTEXT, CONTEXT), TEXT, "Choose from 2 to 511"),
    (Plan(1, 1), TEXT, "Choose from 2 to 511"),
    (Plan(16, 17), TEXT, "stride of 17"),
    (Plan(16, 0), TEXT, "stride of 0"),
    (Plan(16, 16), "", "has 0 tokens"),
    (Plan(16, 16), "x", "has 1 tokens, which is too short: 2"),
    (Plan(2, 2, LLAMA_CPP), TEXT, "Windows of 2 tokens have none that counts in the convention llama.cpp."),
    (Plan(16, 16, LLAMA_CPP), "x" * 15, "has 15 tokens, which is too short: 16"),
]


@pytest.mark.parametrize(("plan", "text", "said"), BAD)
def test_what_cannot_be_scored_is_refused(llm: LLM, plan: Plan, text: str, said: str) -> None:
    with pytest.raises(RequestError) as refusal:
        perplexity(llm, text, plan, SystemClock())
    assert said in f"{refusal.value.cause} {refusal.value.remedy}"


def run(*words: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["perplexity", *map(str, words)], input=stdin)


def test_the_command_prints_what_was_measured(folder: Path, llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    exact = ("--dtype", "float32", "--threads", "1", "--ctx-size", "64")
    wanted = perplexity(llm, TEXT, Plan(64, 64), SystemClock())
    done = run(folder, file, *exact, "--by-position")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"perplexity  {wanted.tally.perplexity:.4f} +- {wanted.tally.error:.4f}"
    assert lines[3].endswith(f"{wanted.tally.count} tokens, {wanted.bytes} bytes")
    assert lines[4].endswith(f"{wanted.windows} of 64 tokens, one each 64, hf")
    assert [line.split()[0] for line in lines[7:]] == ["tokens", "1-15", "16-31", "32-63"]

    record = json.loads(run("--model", folder, "-", *exact, "--json", "--bos", stdin=TEXT).stdout)
    with_bos = perplexity(llm, TEXT, Plan(64, 64, HF, True), SystemClock()).record()
    assert {**record, "seconds": 0} == {"model": str(folder), **with_bos, "seconds": 0}


def test_one_token_has_no_error(folder: Path) -> None:
    """Of its mean, that is: there is nothing to tell it from."""
    done = run(folder, "-", "--by-position", stdin="ab")
    assert done.exit_code == 0 and "nan" not in done.stdout, done.output
    lines = done.stdout.splitlines()
    assert len(lines[0].split()) == 2
    assert lines[-1].split()[:2] + lines[-1].split()[3:] == ["1-15", "1", "-"]


def test_overrides_reach_it(folder: Path, tmp_path: Path) -> None:
    """Another base is another model, which is told."""
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    plain = run(folder, file, "--ctx-size", "400", "--json")
    other = run(folder, file, "--ctx-size", "400", "--json", "--hf-overrides", '{"rope_theta": 100}')
    assert "note: Config overrides: rope_theta=100." in other.stderr
    assert json.loads(plain.stdout)["perplexity"] != json.loads(other.stdout)["perplexity"]
    longer = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert run(folder, file, "--ctx-size", "600").exit_code == 1
    assert run(folder, file, "--ctx-size", "600", "--hf-overrides", json.dumps(longer)).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("x.txt",), "error: x.txt: The text has 3 tokens, which is too short", 1),
        (("-",), "error: standard input: The text has 0 tokens, which is too short", 1),
        (("text.txt", "--convention", "llama.cpp", "-c", "2"), "error: --ctx-size: Windows of 2 tokens have none", 1),
        (("x.txt", "--convention", "llama.cpp", "--stride", "3"), "--stride 3 makes no sense", 2),
        (("x.txt", "--ctx-size", "4000"), "error: --ctx-size: Windows of 4000 tokens cannot be scored", 1),
        (("no.txt",), "no.txt cannot be read", 2),
        (("a", "b", "c"), "There are 3 arguments", 2),
        (("bad.txt",), "is not UTF-8 text", 1),
    ],
)
def test_the_command_says_what_is_wrong(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("abc")
    Path("text.txt").write_text(TEXT)
    Path("bad.txt").write_bytes(b"\xff\xff")
    extra = ("--convention", "llama.cpp") if words == ("x.txt",) else ()
    done = run("--model", folder, *words, *extra)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("smollm2",), "smollm2 is a model, and FILE is missing. Write: pelton perplexity smollm2 FILE"),
        (("folder",), "folder is a model, and FILE is missing."),
        (("x.gguf",), "x.gguf is a model, and FILE is missing."),
        (("folder", "no.gguf"), "no.gguf is a model, and FILE is missing."),
        (("pypi:some-model",), "pypi:some-model is a model, and FILE is missing."),
        (("x.txt", "smollm2"), "The model comes first. Write: pelton perplexity smollm2 x.txt"),
        (("x.txt", "folder"), "The model comes first. Write: pelton perplexity folder x.txt"),
        (
            ("Qwen/Qwen3-0.6B",),
            "No such file or directory. If it is the model, write: pelton perplexity Qwen/Qwen3-0.6B FILE",
        ),
        (("smollm2", "no.txt"), "no.txt cannot be read: No such file or directory."),
    ],
)
def test_a_model_in_the_place_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("abc")
    Path("x.gguf").write_bytes(b"GGUF")
    Path("folder").mkdir()
    done = run(*words)
    assert done.exit_code == 2 and done.stderr.splitlines()[-1].startswith("Error: ") and said in done.stderr
    assert "If it is" not in done.stderr or "Qwen" in words[0]
