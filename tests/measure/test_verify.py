"""verify on a tiny model: everything equal, every cell real, every number reproducible; and how far it runs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.verify_many import roomy
from tests.measure.verify_parts import tiny_checkpoint, tiny_rig, unproven
from tests.oracle.tiny import save

from pelton.core.clock import Clock
from pelton.core.config import resolve
from pelton.measure.verify.cases import Cases
from pelton.measure.verify.dimensions.evicted_prefixes import EvictedPrefixes
from pelton.measure.verify.dimensions.prefix_reuse import PrefixReuse
from pelton.measure.verify.report import CellReport, Report
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.start import start
from pelton.measure.verify.verify import Extent, dimensions, verify

pytest.importorskip("pelton.backends.cpu._native")
CELLS, SOME = 720, 160
SCHEDULES = 50
BOX_MINUTES = 15
TINY_BOX_MINUTES = 3
MANY = 20_000  # of a tiny model
Parts = tuple[Rig, Cases]


@pytest.fixture(scope="module", params=["float32", "auto"])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with tiny_rig(tiny_checkpoint(tmp_path_factory.mktemp("tiny")), request.param) as made:
        yield made


@pytest.fixture(scope="module")
def whole(parts: Parts) -> Report:
    """A good part of the cells."""
    return verify(*parts, Extent(SOME))


def test_all_answers_are_equal_and_no_cell_is_empty(whole: Report) -> None:
    assert whole.passed, "\n".join(whole.lines())
    assert whole.schedules == SOME == len(whole.cells) and len(whole.not_run) == CELLS - SOME
    assert whole.answers > 4 * SOME and whole.tokens > 40 * SOME
    assert whole.events["cached blocks given up"] > 0, "no block was used again"


def test_one_schedule_alone_is_what_it_was_among_all(parts: Parts, whole: Report) -> None:
    for number in (3, 17, 40):
        (cell,) = verify(*parts, Extent(only=number)).cells
        assert cell in whole.cells


def test_fewer_schedules_than_cells_leave_some_not_run(parts: Parts, whole: Report) -> None:
    report = verify(*parts, Extent(5))
    assert report.passed and len(report.cells) == 5 and len(report.not_run) == CELLS - 5
    assert all(cell in whole.cells for cell in report.cells)
    assert "715 of 720 cells not reached; --json lists them" == report.lines()[-2]


def test_six_schedules_bring_about_every_value_of_every_dimension(parts: Parts) -> None:
    for seed in (0, 1, 2):
        report = verify(*parts, Extent(6), seed=seed)
        assert report.passed and not unproven(report)
    assert unproven(verify(*parts, Extent(1))), "one schedule cannot"


class Parted(PrefixReuse):
    values = PrefixReuse.values[3:4]


class Filed(EvictedPrefixes):
    values = EvictedPrefixes.values[1:]


@pytest.mark.parametrize("seed", [1, 2])
def test_parts_of_blocks_are_found_where_all_else_comes_from_files(parts: Parts, seed: int) -> None:
    """What is driven out comes back in whole blocks: not so what a part was to be found in."""
    over = {**dimensions(), "prefix_reuse": Parted(), "evicted_prefixes": Filed()}
    report = verify(*parts, Extent(48), seed=seed, over=over)
    assert report.passed and len(report.cells) == 48, "\n".join(report.lines())


def test_a_value_without_its_event_is_unproven() -> None:
    first = {name: dimension.values[0] for name, dimension in dimensions().items()}
    proofs = {dimension.proof(first[name]): 1 for name, dimension in dimensions().items()}
    one = CellReport(first, 1, proofs)
    report = Report(seed=0, schedules=1, answers=1, tokens=1, steps=1, seconds=0.1, cells=(one,))
    others = {(name, value) for name, made in dimensions().items() for value in made.values[1:]}
    assert unproven(report) == others
    silent = replace(report, cells=(replace(one, events={}),))
    assert unproven(silent) == others | set(first.items())


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
    assert record["passed"] is True and len(record["cells"]) == SOME and record["differences"] == []
    assert record["cells"][0]["events"] and record["seed"] == 0
    assert whole.lines()[-1].startswith("equal to the last bit: 160 schedules in 160 cells, ")


def test_an_empty_cell_fails_a_report() -> None:
    cell = CellReport({"a": "x", "b": "y"}, 1, {}, ("tokens found in the cache",))
    report = Report(seed=0, schedules=1, answers=1, tokens=1, steps=1, seconds=0.1, cells=(cell,))
    assert not report.passed and report.empty == [cell]
    assert "EMPTY  a: x, b: y: no tokens found in the cache" in report.lines() and report.lines()[-1].startswith(
        "FAILED"
    )


@pytest.mark.slow
@pytest.mark.timeout(60 * BOX_MINUTES + 120)
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_models(model: str, request: pytest.FixtureRequest) -> None:
    """All 50 schedules, or as many as fit the box; even a few bring every value of every dimension about."""
    ready = start(resolve(str(request.getfixturevalue(model)), {}), max_tokens=24)
    try:
        windows = [window for _, window in ready.rig.sizes.groups if window is not None]
        assert all(any(len(prompt) > window for prompt in ready.cases.prompts) for window in windows)
        report = verify(ready.rig, ready.cases, Extent(SCHEDULES, minutes=BOX_MINUTES))
    finally:
        ready.close()
    print("\n".join(report.lines()))
    assert report.passed, "\n".join(report.lines())
    assert report.schedules == SCHEDULES or report.seconds >= 60 * BOX_MINUTES, "it stopped before it was to"
    assert not unproven(report)


@pytest.mark.slow
@pytest.mark.timeout(60 * TINY_BOX_MINUTES + 120)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_many_schedules_of_tiny_models(family: str, tmp_path: Path) -> None:
    """As many of MANY as fit the box, one of the models with windows in some layers; all cells come in any case."""
    with tiny_rig(save(roomy(family), tmp_path)) as (rig, cases):
        report = verify(rig, cases, Extent(MANY, minutes=TINY_BOX_MINUTES))
    print("\n".join(report.lines()))
    assert report.passed and not report.not_run, "\n".join(report.lines())
    assert report.schedules == MANY or report.seconds >= 60 * TINY_BOX_MINUTES, "it stopped before it was to"
