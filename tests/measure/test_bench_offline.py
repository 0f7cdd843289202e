"""`pelton bench` without a server, on a tiny model: keys of its results, conversations, errors that name flags."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.backends.probed import canned
from tests.measure.verify_parts import tiny_talker

from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.measure import Effort
from pelton.cli.commands.bench import bench, probing
from pelton.core.clock import SystemClock
from pelton.core.errors import CapacityError, RequestError
from pelton.engine.llm import LLM
from pelton.measure.bench.offline import Answers, throughput
from pelton.measure.bench.workload import Sample

pytest.importorskip("pelton.backends.cpu._native")
PROBED = {"date", "quick", "busy", "isa", "threads", "working_set_bytes", "read_bytes_per_s", "matrix_flops_per_s"}
PERCENTILES = ["10", "25", "50", "75", "90", "99"]
SMALL = ("--threads", "1", "--disable-tqdm", "--input-len", "9", "--output-len", "3")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_talker(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The machine's limits are made up; what was measured and kept is in the list."""
    did: list[str] = []

    def measure(effort: Effort, *, threads: int = 0) -> MachineProbe:
        did.append("quick" if effort.quick else "full")
        return canned(identify(threads), quick=effort.quick)

    monkeypatch.setattr(probing, "load", lambda identity: None)
    monkeypatch.setattr(probing, "measure", measure)
    monkeypatch.setattr(probing, "save", lambda probe: did.append("saved"))
    return did


def run(*words: object) -> Result:
    return CliRunner().invoke(bench, [str(word) for word in words])


def kept(done: Result, file: Path) -> dict[str, object]:
    assert done.exit_code == 0, (done.output, done.exception)
    table = json.loads(file.read_text())
    assert isinstance(table, dict)
    return table


def check_host(host: object, elapsed: float) -> None:
    """Part of the run was computing, and part was not."""
    assert isinstance(host, dict)
    assert host["share"] == pytest.approx(1 - host["backend_seconds"] / elapsed) and 0 < host["share"] < 1
    assert 0 < host["cpu_seconds_outside_kernels"] < host["cpu_seconds"]
    assert host["worker_wait_seconds"] >= 0


@pytest.mark.parametrize("more", [(), ("--disable-detokenize", "--n", "2")])
def test_latency(model: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    file = tmp_path / "r.json"
    words = ("--batch-size", 2, "--num-iters", 3, "--num-iters-warmup", 1, "--output-json", file)
    table = kept(run("latency", model, *SMALL, *words, *more), file)
    theirs = {"avg_latency", "std_latency", "latencies", "percentiles"}
    assert table.keys() == theirs | {"model_id", "client", "probe", "host"}
    check_host(table["host"], sum(table["latencies"]))  # type: ignore[arg-type]
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
        "host",
        "probe",
    }
    assert table.keys() == theirs | ours | {"cost_per_million_output_tokens"}
    assert table["total_num_tokens"] == 4 * (9 + 3) and table["failed"] == 0


def test_latency_quotes_the_limits_of_decoding(model: Path, tmp_path: Path, probes: list[str]) -> None:
    file = tmp_path / "r.json"
    done = run("latency", model, *SMALL, "--batch-size", 1, "--num-iters", 1, "--output-json", file)
    part = kept(done, file)["probe"]
    assert isinstance(part, dict) and probes == ["quick", "saved"]
    assert "measuring the machine once" in done.stderr and "Decoding one request: " in done.stdout
    assert part.keys() == PROBED | {"decode"} and part["quick"] is True and part["threads"] == 1
    decode = part["decode"]
    assert decode["alternations"] == 9 == decode["share_of_limit"]["samples"]
    assert decode["limit"] in ("read bandwidth", "code expansion")
    assert decode["step_bytes"] == sum(decode["weight_bytes"].values()) + decode["kv_bytes"] and decode["kv_bytes"] > 0
    assert decode["step_ms"] > 0 and decode["read_ms"] > 0 and decode["expansion_ms"] > 0
    assert decode["share_of_limit"]["median"] >= decode["share_of_read_limit"]["median"] > 0


def test_throughput_quotes_the_limits_of_the_run(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    done = run("throughput", model, *SMALL, "--num-prompts", 4, "--output-json", file)
    table = kept(done, file)
    part = table["probe"]
    assert isinstance(part, dict) and "Of the machine's limits" in done.stdout
    shares = {"share_of_read_limit", "share_of_matrix_limit"}
    assert part.keys() == PROBED | shares | {"run_read_bytes", "run_flops", "step_read_bytes_per_s"}
    seconds = float(str(table["elapsed_time"]))
    reading = part["run_read_bytes"] / part["step_read_bytes_per_s"]
    assert part["share_of_read_limit"] == pytest.approx(reading / seconds) and part["run_flops"] > 0
    assert part["share_of_matrix_limit"] == pytest.approx(part["run_flops"] / part["matrix_flops_per_s"] / seconds)


@pytest.mark.parametrize("busy_now", [False, True])
def test_figures_of_a_busy_machine_are_not_trusted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probes: list[str], busy_now: bool
) -> None:
    monkeypatch.setattr(probing, "load", lambda identity: replace(canned(identity), load_before=99.0))
    monkeypatch.setattr("os.getloadavg", lambda: (99.0 if busy_now else 0.0, 0.0, 0.0))
    file = tmp_path / "r.json"
    done = run("throughput", model, *SMALL, "--num-prompts", 2, "--output-json", file)
    part = kept(done, file)["probe"]
    assert isinstance(part, dict) and part["busy"] is busy_now and part["quick"]
    assert probes == (["quick"] if busy_now else ["quick", "saved"]) and "figures are of a busy one" in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Of the machine's limits")]
    assert line.endswith("of products (probed on a busy machine)" if busy_now else "of products")


def test_without_a_probe_nothing_is_measured(model: Path, tmp_path: Path, probes: list[str]) -> None:
    file = tmp_path / "r.json"
    words = ("--batch-size", 1, "--num-iters", 1, "--output-json", file, "--no-probe")
    done = run("latency", model, *SMALL, *words)
    assert kept(done, file)["probe"] is None and not probes and "limit" not in done.output


def test_a_probe_that_fails_does_not_fail_the_bench(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(effort: Effort, *, threads: int = 0) -> MachineProbe:
        raise CapacityError("No memory for it.")

    monkeypatch.setattr(probing, "measure", measure)
    file = tmp_path / "r.json"
    done = run("throughput", model, *SMALL, "--num-prompts", 1, "--output-json", file)
    assert kept(done, file)["probe"] is None and "limits are left out: No memory for it." in done.stderr


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
    assert table.keys() == theirs | {"peak_resident_bytes", "model_id", "client", "probe"}
    assert table["probe"].keys() == PROBED | {"disk_read_bytes_per_s", "disk_write_bytes_per_s"}  # type: ignore[attr-defined]
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
        ("speed", "There is no pelton bench speed. There are: serve, latency, throughput, startup, sweep."),
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
