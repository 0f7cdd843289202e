"""Baselines: what they compute is right, their answers are the engine's own, and the figures are what they say."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.measure.verify_parts import tiny_talker

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.cli.commands.bench import baselines as command
from pelton.cli.commands.bench import bench
from pelton.core.clock import SystemClock
from pelton.engine.llm import LLM
from pelton.measure.baselines.attention import unfused
from pelton.measure.baselines.batching import idle, static_batching
from pelton.measure.baselines.gain import Gain, in_turns
from pelton.measure.baselines.recompute import no_cache
from pelton.measure.baselines.reservation import fitting, reserved
from pelton.measure.bench.workload import Sample
from pelton.models import build_module
from pelton.program.costs import op_costs
from pelton.program.passes import run_passes
from pelton.program.values import StepShape

pytest.importorskip("pelton.backends.cpu._native")
SAMPLES = [Sample(length, prompt=tuple(range(3, 3 + prompt))) for length, prompt in ((2, 9), (12, 40), (5, 3), (9, 20))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_talker(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def llm(model: Path):  # type: ignore[no-untyped-def]
    with LLM(str(model), max_num_seqs=4, threads=1, enable_prefix_caching=False) as opened:
        yield opened


def test_static_batches_idle_where_answers_are_over() -> None:
    assert idle([2, 12, 5, 9], 2) == pytest.approx(1 - 28 / (2 * 12 + 2 * 9))
    assert idle([4, 4], 2) == 0
    assert idle([4, 4, 4], 2) == pytest.approx(1 - 12 / 16), "a place that nobody took idles, too"


def test_static_batching(llm: LLM) -> None:
    gain = static_batching(llm, SAMPLES, 2, 2, SystemClock())
    assert gain.same is True
    assert gain.details["idle_share"] == pytest.approx(idle([2, 12, 5, 9], 2))


def test_without_a_cache_the_same_is_drawn_with_more_work(llm: LLM) -> None:
    gain = no_cache(llm, range(3, 40), 6, 1, SystemClock())
    assert gain.same is True
    assert gain.details["gflop_without"] > 4 * gain.details["gflop"]


def test_an_engine_that_keeps_prefixes_is_no_baseline(model: Path) -> None:
    with LLM(str(model), threads=1) as llm:
        llm.generate({"prompt_token_ids": list(range(3, 80))}, use_tqdm=False)
        with pytest.raises(ValueError, match="keeps prefixes"):
            no_cache(llm, range(3, 9), 2, 1, SystemClock())


def test_reservations_leave_room_for_fewer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.measure.baselines.reservation.LOOK_SECONDS", 0.0005)
    with LLM(str(model), max_num_seqs=4, threads=1, enable_prefix_caching=False, max_model_len=96, num_blocks=7) as llm:
        assert fitting(llm.report) == 2
        gain = reserved(llm, SAMPLES * 6, 4, 1, SystemClock())
    assert gain.same is True
    assert (gain.details["most_at_once"], gain.details["most_at_once_without"]) == (4, 2)
    assert 0 <= gain.details["waste"] < gain.details["waste_without"] < 1


@pytest.mark.parametrize("piece", [1, 60, 1 << 19])
def test_unfused_attention_is_attention(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in ((2, 3, 7, 4), (2, 1, 7, 4), (2, 1, 7, 4)))
    hidden = np.triu(np.full((7, 7), -np.inf, np.float32), 1)
    monkeypatch.setattr("pelton.measure.baselines.attention.PIECE_BYTES", piece)
    got = unfused(q, k, v, hidden)
    for group in range(2):
        for head in range(3):
            for row in range(7):
                scores = k[group, 0, : row + 1].astype(np.float64) @ q[group, head, row].astype(np.float64) / 2
                weights = np.exp(scores - scores.max())
                want = weights @ v[group, 0, : row + 1] / weights.sum()
                np.testing.assert_allclose(got[group, head, row], want, rtol=1e-5, atol=1e-6)


def test_turns_alternate_and_ratios_say_how_much_better() -> None:
    told: list[str] = []
    assert in_turns(2, lambda: told.append("b"), lambda: told.append("o")) == ([None] * 2, [None] * 2)
    assert told == ["b", "o", "b", "o"]
    assert Gain("a", "b", "tok/s", 6, 2).ratio == 3
    assert Gain("a", "b", "ms", 2, 6, more_is_better=False).ratio == 3


def run(*words: object) -> Result:
    return CliRunner().invoke(bench, ["baselines", *map(str, words)])


def test_the_command(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    words = (
        "--num-prompts",
        3,
        "--input-len",
        9,
        "--output-len",
        3,
        "--repeats",
        1,
        "--threads",
        1,
        "--max-num-seqs",
        2,
    )
    done = run(model, *words, "--output-json", file)
    assert done.exit_code == 0, (done.output, done.exception)
    table = json.loads(file.read_text())
    assert [gain["gain"] for gain in table["gains"]][:3] == ["continuous batching", "KV cache", "paged KV memory"]
    assert all(gain["same_answers"] is not False for gain in table["gains"])
    assert "answers the same" in done.output and "ANSWERS DIFFER" not in done.output


def test_what_fused_attention_moves_is_counted(tmp_path: Path) -> None:
    model, file = tiny_talker(tmp_path, max_position_embeddings=600), tmp_path / "r.json"
    done = run(model, "--only", "unfused-attention", "--repeats", 1, "--threads", 1, "--output-json", file)
    assert done.exit_code == 0, (done.output, done.exception)
    (gain,) = json.loads(file.read_text())["gains"]
    module = run_passes(build_module(open_checkpoint(model)))
    ops = [item for item in op_costs(module, StepShape(((0, 512),), 1)) if item.op.kind == "attend"]
    heads = ops[0].op.integer("heads")
    assert gain["gain"] == "fused attention" and gain["prompt"] == 512 and gain["ours"] > 0 < gain["without"]
    assert 1e6 * gain["mbytes"] == pytest.approx(sum(item.cost.read + item.cost.written for item in ops))
    table = len(ops) * heads * 512 * 512 * 4
    assert 1e6 * (gain["mbytes_without"] - gain["mbytes"]) == pytest.approx(4 * table), "written, read, written, read"


def test_only_one_of_them(model: Path) -> None:
    done = run(model, "--only", "no-kv-cache", "--num-prompts", 1, "--input-len", 5, "--repeats", 1, "--threads", 1)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "KV cache" in done.output and "static" not in done.output


def test_prefix_caching_is_refused(model: Path) -> None:
    done = run(model, "--enable-prefix-caching")
    assert done.exit_code == 2 and "--enable-prefix-caching would hide" in done.output


def test_later_turns_are_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = [Sample(3, prompt="a"), Sample(3, prompt="b", follows=0), Sample(3, prompt="c")]
    monkeypatch.setattr(command, "samples_of", lambda *given: talk)
    made = command._samples({"num_prompts": 3}, Mock())
    assert [sample.prompt for sample in made] == ["a", "c"]
    assert "note: 2 requests of --num-prompts 3: the others are later turns" in capsys.readouterr().err
    monkeypatch.setattr(command, "samples_of", lambda *given: talk[:1])
    assert len(command._samples({"num_prompts": 1}, Mock())) == 1 and not capsys.readouterr().err
