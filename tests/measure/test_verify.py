"""verify on a tiny model: everything equal, every cell real, every number reproducible; and how far it runs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.verify_parts import tiny_checkpoint, tiny_rig

from pelton.core.clock import Clock
from pelton.core.config import resolve
from pelton.measure.verify.cases import Cases
from pelton.measure.verify.report import CellReport, Report
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.start import start
from pelton.measure.verify.verify import Extent, verify

pytest.importorskip("pelton.backends.cpu._native")
CELLS = 48
BOX_MINUTES = 15
Parts = tuple[Rig, Cases]


@pytest.fixture(scope="module", params=["float32", "auto"])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with tiny_rig(tiny_checkpoint(tmp_path_factory.mktemp("tiny")), request.param) as made:
        yield made


@pytest.fixture(scope="module")
def whole(parts: Parts) -> Report:
    """All cells once."""
    return verify(*parts, Extent(CELLS))


def test_all_answers_are_equal_and_no_cell_is_empty(whole: Report) -> None:
    assert whole.passed, "\n".join(whole.lines())
    assert whole.schedules == CELLS == len(whole.cells) and not whole.not_run
    assert whole.answers > 4 * CELLS and whole.tokens > 40 * CELLS
    assert whole.events["evicted blocks"] > 0, "no block was used again"


def test_one_schedule_alone_is_what_it_was_among_all(parts: Parts, whole: Report) -> None:
    for number in (3, 17, 40):
        (cell,) = verify(*parts, Extent(only=number)).cells
        assert cell in whole.cells


def test_fewer_schedules_than_cells_leave_some_not_run(parts: Parts, whole: Report) -> None:
    report = verify(*parts, Extent(5))
    assert report.passed and len(report.cells) == 5 and len(report.not_run) == CELLS - 5
    assert all(cell in whole.cells for cell in report.cells)
    assert "not run: 43 of 48 cells" in report.lines()


def test_another_seed_gives_other_schedules(parts: Parts) -> None:
    one, other = verify(*parts, Extent(2), seed=0), verify(*parts, Extent(2), seed=1)
    assert one.passed and other.passed and one.cells != other.cells


class Ticking(Clock):
    """A second passes each time somebody looks."""

    def __init__(self) -> None:
        self.ticks = 0

    def now(self) -> float:
        self.ticks += 1
        return float(self.ticks)


def test_a_time_box_runs_as_many_as_fit(parts: Parts) -> None:
    """Steps look at the clock several times each."""
    rig, cases = parts
    report = verify(replace(rig, clock=Ticking()), cases, Extent(None, minutes=60))
    assert report.passed and 2 < report.schedules < CELLS
    assert report.seconds >= 60 * 60 and len(report.not_run) == CELLS - report.schedules


def test_a_report_is_json_and_lines(whole: Report) -> None:
    record = json.loads(json.dumps(whole.record()))
    assert record["passed"] is True and len(record["cells"]) == CELLS and record["differences"] == []
    assert record["cells"][0]["events"] and record["seed"] == 0
    assert whole.lines()[-1].startswith("equal to the last bit: 48 schedules in 48 cells, ")


def test_an_empty_cell_fails_a_report() -> None:
    cell = CellReport({"a": "x", "b": "y"}, 1, {}, ("hit tokens",))
    report = Report(seed=0, schedules=1, answers=1, tokens=1, steps=1, seconds=0.1, cells=(cell,))
    assert not report.passed and report.empty == [cell]
    assert "EMPTY  a: x, b: y: no hit tokens" in report.lines() and report.lines()[-1].startswith("FAILED")


@pytest.mark.slow
@pytest.mark.timeout(60 * BOX_MINUTES + 120)
def test_the_default_model(smollm2: Path) -> None:
    """As many of the 50 schedules as fit."""
    ready = start(resolve(str(smollm2), {}), max_tokens=24)
    try:
        report = verify(ready.rig, ready.cases, Extent(50, minutes=BOX_MINUTES))
    finally:
        ready.close()
    print("\n".join(report.lines()))
    assert report.passed and report.schedules > 0, "\n".join(report.lines())
