"""`pelton bench sweep`: its figures, its front, its errors; and what planning costs is measured at all."""

import json
from pathlib import Path

import pytest
from bench import scheduler as bench_scheduler
from click.testing import CliRunner, Result
from tests.engine.fakes import held, make_engine
from tests.measure.verify_parts import tiny_talker

from pelton.cli.commands.bench import bench
from pelton.core.clock import SystemClock
from pelton.core.errors import BackendError
from pelton.measure.bench.driven.sweep import Cell, Table, Traffic, on_front, run_cell

pytest.importorskip("pelton.backends.cpu._native")
SMALL = ("--threads", "1", "--disable-tqdm", "--input-len", "40", "--output-len", "4")


def run(*words: object) -> Result:
    return CliRunner().invoke(bench, ["sweep", *map(str, words)])


def test_a_cell_asks_everybody_so_many_at_once() -> None:
    engine, executable, _ = make_engine(rows=4, budget=64)
    limits = engine.scheduler.limits
    most = 0
    steps = engine.step

    def counted() -> list:  # type: ignore[type-arg]
        nonlocal most
        events = steps()
        most = max(most, engine.stats.running)
        return events

    engine.step = counted  # type: ignore[method-assign]
    table = run_cell(engine, Cell(16, 3), Traffic(7, 30, 5, 250), SystemClock())
    assert most == 3 and executable.largest == 16 and engine.scheduler.limits is limits and held(engine) == 0
    assert (table["completed"], table["failed"], table["total_output_tokens"]) == (7, 0, 35)
    assert (table["max_num_batched_tokens"], table["max_concurrency"], table["preemptions"]) == (16, 3, 0)
    assert float(str(table["p99_ttft_ms"])) >= float(str(table["p50_ttft_ms"])) >= 0


def test_cells_ask_the_same_and_find_nothing_cached() -> None:
    assert Traffic(5, 8, 2, 250).made() == Traffic(5, 8, 2, 250).made()
    engine, executable, _ = make_engine(rows=4, budget=64)
    computed = []
    for _ in range(2):
        before = executable.computed
        run_cell(engine, Cell(64, 2), Traffic(4, 32, 3, 250), SystemClock())
        computed.append(executable.computed - before)
    assert computed[0] == computed[1]


def test_a_request_that_fails_ends_the_sweep_and_leaves_the_engine_idle() -> None:
    engine, executable, _ = make_engine()
    executable.broken = True
    with pytest.raises(RuntimeError):
        run_cell(engine, Cell(16, 2), Traffic(3, 8, 2, 250), SystemClock())
    executable.broken = False
    engine.step()
    assert not engine.has_work
    with pytest.raises(BackendError, match="failed"):
        run_cell(engine, Cell(16, 2), Traffic(3, 300, 2, 260), SystemClock())


def row(count: int, first: float, following: float | None) -> Table:
    return {"max_concurrency": count, "p99_ttft_ms": first, "p99_itl_ms": following}


def test_the_front_is_of_as_many_at_once() -> None:
    rows = [row(1, 10, 5), row(1, 8, 6), row(1, 11, 5), row(1, 8, 7), row(8, 100, 50), row(8, 100, 50), row(2, 3, None)]
    assert on_front(rows) == [True, True, False, False, True, True, True]


def test_the_command_keeps_a_line_for_each_cell(tmp_path: Path) -> None:
    model, file = tiny_talker(tmp_path), tmp_path / "sweep.jsonl"
    done = run(
        model, *SMALL, "--chunk-sizes", "2,64", "--concurrency", "3,1", "--num-prompts", 3, "--output-json", file
    )
    assert done.exit_code == 0, (done.output, done.exception)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    cells = [(one["max_concurrency"], one["max_num_batched_tokens"]) for one in rows]
    assert cells == [(1, 2), (1, 64), (3, 64)], "no step has fewer tokens than requests"
    assert all(one["completed"] == 3 and isinstance(one["pareto"], bool) for one in rows)
    assert any(one["pareto"] for one in rows) and "front" in done.output and "*" in done.output
    assert "in each bar steps of 2, 64 tokens" in done.output
    (three,) = [line for line in done.output.splitlines() if line.startswith("3 ") and "|" in line]
    assert [bar[:4] for bar in three.split("|")[1::2]] == [" " * 4] * 2, "where nothing is measured nothing is drawn"
    assert "note: steps of 2 tokens are left out where more requests are under way" in done.output


@pytest.mark.parametrize(("words", "said"), [
    (("--chunk-sizes", "64,x"), "'x' cannot be in it; it is a list of whole numbers from 1 to 1048576, such as 64,128"),
    (("--chunk-sizes", "64,"), "'--chunk-sizes': '' cannot be in it"),
    (("--chunk-sizes", "0"), "'--chunk-sizes': '0' cannot be in it"),
    (("--chunk-sizes", "1048577"), "'1048577' cannot be in it"),
    (("--concurrency", "9,99999"), "it is a list of whole numbers from 1 to 65536, such as 1,8,32"),
    (("--chunk-sizes", "4", "--concurrency", "8"), "--chunk-sizes 4 has no room for --concurrency 8"),
    (("--max-num-seqs", "4"), "Give it as --concurrency"),
    (("--itl-target-ms", "40"), "Give it as --chunk-sizes"),
    (("--input-len", "100000"), "more than the model's"),
])  # fmt: skip
def test_what_cannot_be_swept_is_said(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(tiny_talker(tmp_path), *SMALL, *words)
    assert done.exit_code == 2 and said in " ".join(done.output.split())


def test_planning_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_scheduler, "STEPS", 10)
    for order, waiting, depth in (("fcfs", 0, 1), ("fair", 9, 1), ("fcfs", 9, 2)):
        between, meanwhile = bench_scheduler.measured(order, 4, waiting, depth)
        assert min(between, meanwhile) > 0
