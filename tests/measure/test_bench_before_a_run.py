"""What `pelton bench serve` does before it measures: the model's name, tokens, warm-up requests, the cache."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.measure.test_bench_serve import Served, run
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.bench import bench
from pelton.measure.bench import WORKLOADS
from pelton.measure.bench.reuse import reuse_note
from pelton.measure.bench.warmup import warmups
from pelton.measure.bench.workload import Sample
from pelton.measure.bench.workloads import prefix_repetition, random_ids

SHORT = ("--num-prompts", "3", "--input-len", "20", "--output-len", "1")
EMPTIED = "the server's prefix cache was emptied before the run"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path / "socket")
    server.start()
    yield server
    server.stop()


def failed(server: Served, *words: str) -> str:
    done = CliRunner().invoke(bench, ["serve", "--port", str(server.port), "--disable-tqdm", *words])
    assert done.exit_code == 1 and done.exception is not None, done.output
    return str(done.exception)


def test_a_model_that_is_not_there_is_told_in_the_servers_words(served: Served) -> None:
    served.only = "tiny"
    served.routes.clear()  # what /tokenize says of it must not come first
    told = failed(served, *SHORT, "--model", "nope")
    assert told == f"http://127.0.0.1:{served.port} refuses the model 'nope': 404: There is no model 'nope'."
    assert not served.bodies


def test_a_server_that_does_not_tokenise(served: Served, tmp_path: Path) -> None:
    served.routes.clear()
    told = failed(served, *SHORT)
    assert "has no /tokenize" in told and told.endswith("by --tokenizer.") and not served.bodies
    assert EMPTIED not in run(served, *SHORT, "--tokenizer", str(tiny_talker(tmp_path)))
    assert len(served.bodies) == 4 and not served.resets


def test_the_cache_is_emptied_behind_the_requests_that_do_not_count(served: Served, tmp_path: Path) -> None:
    keep = ("--save-result", "--result-dir", str(tmp_path), "--result-filename", "r")
    assert EMPTIED in run(served, *SHORT, *keep, "--num-warmups", "2")
    assert served.resets == [2] and json.loads((tmp_path / "r").read_text())["prefix_cache_reset"] is True
    assert EMPTIED not in run(served, *SHORT, *keep, "--no-reset-prefix-cache")
    assert served.resets == [2] and json.loads((tmp_path / "r").read_text())["prefix_cache_reset"] is False


def test_what_came_from_the_cache_by_chance_is_told(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n} beginnings"}) + "\n" for n in range(3)))
    words = ("--workload", "custom", "--dataset-path", str(file), "--num-prompts", "3", "--output-len", "1")
    assert "prefix cache:" not in run(served, *words)
    served.cached = 9
    assert "27 of 33 prompt tokens came from the prefix cache, although no two" in run(served, *words)
    assert "1 of 4 requests have a prompt that another one has" in run(served, *words, "--num-prompts", "4")
    assert "although" not in run(served, *SHORT, "--prefix-len", "20")


def test_over_a_unix_socket(served: Served, tmp_path: Path) -> None:
    url = f"unix:{tmp_path / 'socket'}"
    done = CliRunner().invoke(bench, ["serve", "--base-url", url, "--disable-tqdm", *SHORT])
    assert done.exit_code == 0, (done.output, done.exception)
    assert len(served.bodies) == 4 and served.resets == [1]
    words = ["serve", "--base-url", f"{url}.absent", "--ready-check-timeout-sec", "0", *SHORT]
    assert f"{url}.absent cannot be reached" in str(CliRunner().invoke(bench, words).exception)


@pytest.mark.parametrize("name", ["random", "prefix_repetition", "chat", "rag", "agent", "ide", "batch"])
def test_the_requests_before_are_no_part_of_the_run(served: Served, data: Path, name: str) -> None:
    words = ("--workload", name, "--data", str(data), "--num-prompts", "3", "--input-len", "30", "--output-len", "1")
    asked = []
    for warm in (0, 1, 4):
        served.bodies.clear()
        run(served, *words, "--num-warmups", str(warm), "--max-concurrency", "1")
        bodies = [json.dumps(body.get("messages") or body.get("prompt")) for body in served.bodies]
        assert len(bodies) == warm + 3
        if name not in ("random", "prefix_repetition"):  # their tokens, by this server, are lengths of words
            assert not set(bodies[:warm]) & set(bodies[warm:])
        asked.append(bodies[warm:])
    assert asked[0] == asked[1] == asked[2]


def test_a_request_before_begins_in_another_way() -> None:
    messages = ({"role": "system", "content": "rules " * 30}, {"role": "user", "content": "hello"})
    samples = [Sample(4, prompt=(5, 5, 6, 7)), Sample(5, prompt="once " * 40), Sample(6, messages=messages, follows=1)]
    made = warmups(samples, 4)
    assert made[0] == made[3] == Sample(4, prompt=(6, 7, 5, 5))
    text, talk = made[1], made[2]
    assert isinstance(text.prompt, str) and text.prompt.startswith("Before the run, 2: once") and len(text.prompt) < 200
    assert talk.follows is None and [message["role"] for message in talk.messages] == ["system", "user"]
    assert all(str(message["content"]).startswith("Before the run, 3: ") for message in talk.messages)
    assert [sample.output_len for sample in made] == [4, 5, 6, 4]


def test_common_prefixes_need_no_note() -> None:
    common = tuple(range(40))
    assert reuse_note([Sample(1, prompt=(*common, n)) for n in range(3)], 64, 120) is None
    apart = [Sample(1, prompt=(n, *common)) for n in range(3)]
    assert reuse_note(apart, 59, 120) is None, "what a template puts in front"
    assert reuse_note(apart, 0, 120) is None and "although" in str(reuse_note(apart, 64, 120))


def test_the_help_tells_the_lengths_and_every_option() -> None:
    for command in ("serve", "latency", "throughput", "startup"):
        for option in bench.get_command(None, command).params:  # type: ignore[attr-defined, union-attr, arg-type]
            assert option.param_type_name == "argument" or option.help, option.name
    told = " ".join(CliRunner().invoke(bench, ["serve", "--help"]).output.split())
    assert f"[random: {random_ids.INPUT_LEN}; prefix_repetition: {prefix_repetition.SUFFIX_LEN} behind" in told
    assert f"[random: 0; prefix_repetition: {prefix_repetition.PREFIX_LEN}, " in told
    lengths = told[told.index("Tokens of an answer") :]
    for name in WORKLOADS.names():
        assert name in lengths[: lengths.index("]")], name
    assert f"[random, batch: {random_ids.OUTPUT_LEN};" in lengths
