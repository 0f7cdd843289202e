"""`pelton bench` without a server, on a tiny model: keys of its results, conversations, errors that name flags."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.bench import bench
from pelton.core.clock import SystemClock
from pelton.core.errors import RequestError
from pelton.engine.llm import LLM
from pelton.measure.bench.offline import Answers, throughput
from pelton.measure.bench.workload import Sample

pytest.importorskip("pelton.backends.cpu._native")
PERCENTILES = ["10", "25", "50", "75", "90", "99"]
SMALL = ("--threads", "1", "--disable-tqdm", "--input-len", "9", "--output-len", "3")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_talker(tmp_path_factory.mktemp("tiny"))


def run(*words: object) -> Result:
    return CliRunner().invoke(bench, [str(word) for word in words])


def kept(done: Result, file: Path) -> dict[str, object]:
    assert done.exit_code == 0, (done.output, done.exception)
    table = json.loads(file.read_text())
    assert isinstance(table, dict)
    return table


@pytest.mark.parametrize("more", [(), ("--disable-detokenize", "--n", "2")])
def test_latency(model: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    file = tmp_path / "r.json"
    words = ("--batch-size", 2, "--num-iters", 3, "--num-iters-warmup", 1, "--output-json", file)
    table = kept(run("latency", model, *SMALL, *words, *more), file)
    theirs = {"avg_latency", "std_latency", "latencies", "percentiles"}
    assert table.keys() == theirs | {"model_id", "client"}
    assert list(table["percentiles"]) == PERCENTILES and len(table["latencies"]) == 3  # type: ignore[call-overload, arg-type]


def test_throughput(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    words = ("--num-prompts", 4, "--price-per-hour", 2, "--output-json", file)
    table = kept(run("throughput", model, *SMALL, *words), file)
    theirs = {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"}
    ours = {
        "total_input_tokens",
        "total_output_tokens",
        "total_cached_tokens",
        "output_tokens_per_second",
        "failed",
        "model_id",
        "client",
    }
    assert table.keys() == theirs | ours | {"cost_per_million_output_tokens"}
    assert table["total_num_tokens"] == 4 * (9 + 3) and table["failed"] == 0


def test_startup(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    words = ("--num-iters-cold", 1, "--num-iters-warmup", 1, "--num-iters-warm", 1, "--output-json", file)
    table = kept(run("startup", model, "--disable-tqdm", *words), file)
    theirs = {
        key
        for kind in ("cold", "warm")
        for what in ("startup", "compilation")
        for key in (f"avg_{kind}_{what}_time", f"{kind}_{what}_times", f"{kind}_{what}_percentiles")
    }
    assert table.keys() == theirs | {"peak_resident_bytes", "model_id", "client"}
    assert list(table["warm_startup_percentiles"]) == PERCENTILES  # type: ignore[call-overload]
    assert len(table["warm_startup_times"]) == 1 == len(table["cold_startup_times"])  # type: ignore[arg-type]
    assert all(table[key] is None for key in theirs if "compilation" in key)


def test_conversations_are_continued_with_the_real_answers(model: Path) -> None:
    def turn(text: str, follows: int | None = None) -> Sample:
        return Sample(4, messages=({"role": "user", "content": text},), follows=follows)

    asked: list[str] = []
    with LLM(str(model), threads=1, max_num_seqs=4) as llm:
        first = llm.generate([llm.chat_prompt(turn(text).messages) for text in "ab"], Answers(1).params(4))
        plain = llm.chat_prompt

        def noted(messages: object, *rest: object, **more: object) -> object:
            asked.append(str(messages))
            return plain(messages, *rest, **more)  # type: ignore[arg-type]

        llm.chat_prompt = noted  # type: ignore[method-assign, assignment]
        samples = [turn("a"), turn("c", 0), turn("b"), turn("d", 2)]
        table = throughput(llm, samples, Answers(1, detokenize=False), SystemClock(), progress=False)
    assert table["num_requests"] == 4 and table["total_output_tokens"] == 16
    assert len(asked) == 4
    for place, output in enumerate(first):
        assert output.outputs[0].text and repr(output.outputs[0].text) in asked[2 + place]


def test_what_the_model_cannot_take_is_named(model: Path) -> None:
    done = run("latency", model, *SMALL, "--input-len", 510)
    assert done.exit_code == 2 and "--input-len 510 and --output-len 3 are more than the model's 512" in done.output
    done = run("throughput", model, *SMALL, "--input-len", 600)
    assert isinstance(done.exception, RequestError) and done.exception.cause.startswith("--workload random: ")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("latency --batch-size 0", "'--batch-size': 0 is not"),
        ("latency --max-num-seqs 0", "--max-num-seqs 0 cannot work"),
        ("speed", "There is no pelton bench speed. There are: serve, latency, throughput, startup."),
        ("latency --output-json /dev/null/x/y.json", "--output-json"),
        ("throughput --workload custom --dataset-path absent", "--dataset-path absent is no file"),
        ("throughput --workload agent", "--data"),
        ("throughput --price-per-hour nan", "'--price-per-hour': nan is no number"),
        ("throughput --output-json absent/y.json", "--output-json absent/y.json: there is no folder absent"),
        ("startup --num-iters-warm 0", "'--num-iters-warm': 0 is not"),
        ("startup --output-json absent/y.json", "--output-json absent/y.json"),
    ],
)
def test_impossible_flags_are_named_before_a_model_is_loaded(words: str, what: str) -> None:
    kind, *rest = words.split()
    done = run(kind, "./absent-model", *rest)
    assert done.exit_code == 2, (done.output, done.exception)
    assert what in " ".join(done.output.split())
