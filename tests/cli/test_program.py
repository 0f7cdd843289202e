"""`pelton program`: its sums are those of the cost rules, folded or not."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.running import invoke, modules_after

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.cli.fold import fold
from pelton.models import build_module
from pelton.program.costs import total_cost
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.values import StepShape

DYNAMIC = '{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}'


@pytest.fixture(scope="module")
def module(smollm2: Path) -> Module:
    return build_module(open_checkpoint(smollm2))


@pytest.mark.parametrize(("tokens", "context"), [(1, 0), (1, 1000), (128, 0), (17, 33)])
@pytest.mark.parametrize(("dtype", "element"), [("auto", 2), ("float32", 4)])
def test_json_has_the_costs(module: Module, tokens: int, context: int, dtype: str, element: int) -> None:
    words = ("--tokens", str(tokens), "--context", str(context), "--dtype", dtype, "--json")
    shown = json.loads(invoke("program", *words).stdout)
    total = total_cost(run_passes(module), StepShape.of(tokens, context), exact=element == 4)
    assert shown["total"] == {"flops": total.flops, "read": total.read, "written": total.written}
    for name in ("flops", "read", "written"):
        assert sum(op[name] for op in shown["ops"]) == shown["total"][name]
    assert shown["weight_bytes"] == module.weight_bytes
    assert shown["kv_bytes_per_token"] == module.kv_token_bytes(element)


def test_unfused_ops_are_more_and_move_more() -> None:
    fused = json.loads(invoke("program", "--json").stdout)
    parts = json.loads(invoke("program", "--json", "--unfused").stdout)
    assert len(parts["ops"]) > len(fused["ops"])
    assert parts["total"]["written"] > fused["total"]["written"]


def test_text_shows_every_op_and_the_sums(module: Module) -> None:
    ops = run_passes(module).entries["target"].ops
    total = total_cost(run_passes(module), StepShape.of(1, 100))
    shown = invoke("program", "--context", "100", "--all").stdout
    table, _, sums = shown.partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()[1:]] == [op.kind for op in ops]
    assert f"({total.read} bytes)" in sums and f"({total.written} bytes)" in sums and f"({total.flops})" in sums


def test_equal_layers_are_shown_once(module: Module) -> None:
    ops = run_passes(module).entries["target"].ops
    table, _, sums = invoke("program").stdout.partition("\n\n")
    kinds: list[str] = []
    times, group = 1, []
    for line in table.splitlines()[1:]:
        start = re.match(r"-- (\d+) times these (\d+) ops:", line)
        if start:
            times, group = int(start[1]), []
        elif line == "--":
            kinds += group * times
            times, group = 1, []
        elif times > 1:
            group.append(line.split()[0])
        else:
            kinds.append(line.split()[0])
    assert kinds == [op.kind for op in ops]
    assert len(table.splitlines()) < 20
    assert invoke("program", "--all").stdout.partition("\n\n")[2] == sums


@pytest.mark.parametrize("words", [("--tokens", "0"), ("--context", "-1"), ("--dtype", "int8")])
def test_impossible_sizes(words: tuple[str, ...]) -> None:
    assert invoke("program", *words).exit_code == 2


@pytest.mark.parametrize(("tokens", "context"), [("9" * 20, "0"), ("1", "8192"), ("8193", "0")])
def test_more_than_the_context_is_refused(tokens: str, context: str) -> None:
    result = invoke("program", "--tokens", tokens, "--context", context)
    assert result.exit_code == 1
    assert f"--tokens {tokens} and --context {context} are" in result.stderr and "8192" in result.stderr


def test_positions_are_those_of_the_length() -> None:
    def frequencies(*words: str) -> object:
        ops = json.loads(invoke("program", "--json", "--hf-overrides", DYNAMIC, *words).stdout)["ops"]
        return next(op["attrs"]["inverse_frequencies"] for op in ops if op["kind"] == "rope_table")

    plain = frequencies("--max-model-len", "8192")
    assert frequencies("--max-model-len", "16k") != plain == frequencies("--max-model-len", "10")
    assert frequencies("--max-model-len", "auto") == frequencies() != plain


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--max-model-len 9000",
            "--max-model-len 9000 is beyond the 8192 tokens this model was made for. Set at most 81",
        ),
        ("--max-model-len 0", "--max-model-len 0 cannot work. It must be at least 1."),
        (
            "--max-model-len 100 --context 100",
            "--tokens 1 and --context 100 are 101 tokens together. There may be 100:",
        ),
        (
            '--hf-overrides {"num_hidden_layers":31}',
            "error: With --hf-overrides, the checkpoint has no tensor 'model.layers.30",
        ),
    ],
)
def test_lengths_and_overrides_that_cannot_be(words: str, said: str) -> None:
    result = invoke("program", *words.split())
    assert result.exit_code == 1 and said in result.stderr, result.stderr


def test_a_whole_context_is_shown() -> None:
    assert "T = 8 tokens after 8184" in invoke("program", "--tokens", "8", "--context", "8184").stdout


def test_notes_about_the_config_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.cli.commands.program.config_notes", lambda config: ("look here",))
    result = invoke("program")
    assert result.exit_code == 0 and result.stderr == "note: look here\n"


def test_no_kernels_are_needed() -> None:
    modules = modules_after("program")
    assert not {"torch", "tokenizers", "pelton.backends.cpu._native", "pelton.engine"} & modules


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_runs_make_up_the_list(items: list[str]) -> None:
    unfolded: list[str] = []
    for run in fold(items):
        assert run.start == len(unfolded) and run.length >= 1 and run.times >= 1
        unfolded += items[run.start : run.start + run.length] * run.times
    assert unfolded == items


def test_layers_are_found_behind_other_ops() -> None:
    runs = fold(["embed", *["norm", "mix", "mix", "act"] * 5, "head"])
    assert [(run.start, run.length, run.times) for run in runs] == [(0, 1, 1), (1, 4, 5), (21, 1, 1)]
