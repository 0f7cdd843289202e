"""`pelton bench baselines`: every way draws the same tokens, and each wastes what it is said to."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.engine.fakes import BLOCK, expected, held, make_engine
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.bench import bench
from pelton.core.clock import SystemClock
from pelton.core.request import Request
from pelton.measure.bench.driven import baselines
from pelton.measure.bench.driven.baselines import (
    ANSWERS,
    PROMPTS,
    continuous,
    mixed_lengths,
    requests_of,
    reserved,
    static,
    uncached,
)

pytest.importorskip("pelton.backends.cpu._native")
CLOCK = SystemClock()


def small(count: int = 10) -> list[Request]:
    return requests_of(mixed_lengths(count, 3, 60), 250, 3)


def test_lengths_are_mixed_and_repeatable() -> None:
    lengths = mixed_lengths(500, 1, 2048)
    assert lengths == mixed_lengths(500, 1, 2048) != mixed_lengths(500, 2, 2048)
    assert all(PROMPTS[0] <= one.prompt <= PROMPTS[1] and ANSWERS[0] <= one.answer <= ANSWERS[1] for one in lengths)
    assert min(one.prompt for one in lengths) < 40 and max(one.prompt for one in lengths) > 400
    assert all(one.prompt + one.answer <= 60 for one in mixed_lengths(100, 1, 60))


def test_all_ways_draw_the_same_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "BLOCK_TOKENS", BLOCK)
    engine, executable, _ = make_engine(rows=3, budget=64, blocks=60, max_len=100)
    requests = small()
    wanted = {one.request_id: expected(list(one.prompt_token_ids), 0, one.max_tokens) for one in requests}
    ours = continuous(engine, requests, CLOCK)
    batches = static(engine, requests, CLOCK)
    kept = reserved(engine, requests, CLOCK, 240, 100)
    assert ours.tokens == batches.tokens == kept.tokens == wanted and held(engine) == 0
    before = executable.computed
    bare = uncached(engine, requests[:2], CLOCK)
    assert {name: len(tokens) for name, tokens in bare.tokens.items()} == {
        one.request_id: one.max_tokens for one in requests[:2]
    }
    lengths = [(len(one.prompt_token_ids), one.max_tokens) for one in requests[:2]]
    assert executable.computed - before == sum(prompt + drawn for prompt, count in lengths for drawn in range(count))
    assert ours.figures()["mean_running"] > batches.figures()["mean_running"], "rows stand empty at a batch's end"
    assert kept.figures()["mean_running"] <= 2, "memory for two of the longest"
    assert kept.figures()["kv_waste_percent"] > ours.figures()["kv_waste_percent"]
    assert bare.figures()["kv_waste_percent"] == 0 and not bare.held


def test_the_command(tmp_path: Path) -> None:
    model, file = tiny_talker(tmp_path), tmp_path / "ways.json"
    words = ["baselines", str(model), "--threads", "1", "--disable-tqdm", "--num-prompts", "5", "--max-model-len", "64"]
    done = CliRunner().invoke(bench, [*words, "--max-num-seqs", "2", "--output-json", str(file)])
    assert done.exit_code == 0, (done.output, done.exception)
    ways = json.loads(file.read_text())["ways"]
    assert len(ways) == 5 and all(way["output_tokens_per_second"] > 0 for way in ways.values())
    assert "without a cache" in done.output and "64 tokens reserved" in done.output
