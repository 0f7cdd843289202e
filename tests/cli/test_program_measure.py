"""`pelton program --measure`: the described ops with times, and where the step's time goes."""

import json
from pathlib import Path

import pytest
from tests.cli.running import invoke

pytest.importorskip("pelton.backends.cpu._native")

CHAT, BATCH = ("--context", "40"), ("--sequences", "3", "--tokens", "5", "--context", "33")


@pytest.mark.parametrize("words", [CHAT, BATCH], ids=["one token", "several sequences"])
def test_times_add_up(smollm2: Path, words: tuple[str, ...]) -> None:
    plain = json.loads(invoke("program", *words, "--json").stdout)
    shown = json.loads(invoke("program", *words, "--json", "--measure", "--repeat", "3").stdout)
    assert shown["total"] == plain["total"] and shown["repeats"] == 3
    assert [op["kind"] for op in shown["ops"]] == [op["kind"] for op in plain["ops"]]
    for op in shown["ops"]:
        assert 0 <= op["waiting_seconds"] <= op["seconds"] and op["seconds"] > 0
    assert shown["kernel_seconds"] > 0 <= shown["waiting_seconds"] and shown["around_seconds"] >= 0
    low, high = shown["step_quartiles_seconds"]
    assert 0 < low <= shown["step_seconds"] <= high and shown["busy"] == (high > 1.3 * low)
    assert shown["head_seconds"] == pytest.approx(sum(op["seconds"] for op in shown["ops"] if op["kind"] == "head"))
    assert shown["python_seconds"] > 0 and shown["step_seconds"] > shown["head_seconds"] > 0
    assert sum(shown["packed_weight_bytes"].values()) == pytest.approx(plain["weight_bytes"], rel=0.1)


def test_equal_layers_are_shown_together_with_their_sums(smollm2: Path) -> None:
    table, _, sums = invoke("program", "--measure", "--repeat", "2").stdout.partition("\n\n")
    assert "-- 30 times these" in table
    assert table.splitlines()[0].split() == [
        "op",
        "what",
        "weights",
        "bytes",
        "ms",
        "step",
        "GB/s",
        "GFLOP/s",
        "of",
        "limit",
    ]
    names = [line.split()[0] for line in sums.splitlines() if not line.startswith("busy")]
    assert names == ["step", "kernels", "head", "waiting", "around", "Python", "moved", "computed", "limit"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--repeat", "3"), "--repeat is for --measure"),
        (("--threads", "1"), "--threads is for --measure"),
        (("--measure", "--unfused"), "leave it or --measure out"),
        (("--measure", "--sequences", "2", "--context", "9000"), "ask for at most that many"),
    ],
)
def test_what_cannot_be_measured_is_refused(smollm2: Path, words: tuple[str, ...], said: str) -> None:
    result = invoke("program", *words)
    assert result.exit_code != 0 and said in result.stderr


def test_sums_of_several_sequences(smollm2: Path) -> None:
    one, three = (json.loads(invoke("program", "--sequences", n, "--json").stdout) for n in ("1", "3"))
    assert three["sequences"] == 3 and one["total"]["read"] < three["total"]["read"] < 3 * one["total"]["read"]
    assert "T = 3 x 1 tokens, each after 0, R = 3 rows" in invoke("program", "--sequences", "3").stdout
