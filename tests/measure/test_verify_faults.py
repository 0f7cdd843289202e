"""Planted faults, each of which verify must find and tell of; and what it says where one cannot be repeated."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.verify_faults import (
    BatchDependent,
    Double,
    LostEdits,
    NoCopy,
    Once,
    OneNoise,
    OtherKernel,
    RowNoise,
    ShortTail,
    StaleBlocks,
    StaleTree,
    SwappedHeads,
    SwappedHits,
    Torn,
    forgetful_runner,
)
from tests.measure.verify_parts import NUDGED_OP, nudged_checkpoint, tiny_checkpoint, tiny_rig, with_executable

from pelton.measure.verify.cases import Cases
from pelton.measure.verify.dimension import Dimension, Live
from pelton.measure.verify.dimensions.preemption import Preemption
from pelton.measure.verify.dimensions.prefix_reuse import MISS, PART, PrefixReuse
from pelton.measure.verify.report import Difference, Report
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.verify import Extent, dimensions, verify

pytest.importorskip("pelton.backends.cpu._native")
ALL = Extent(160)
IN_ATTENTION = "layer 0 attend"
IN_CHOICE = "it is the choice of the token that differs"
Parts = tuple[Rig, Cases]


@pytest.fixture(scope="module", params=["float32", "auto"])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with tiny_rig(tiny_checkpoint(tmp_path_factory.mktemp("tiny")), request.param) as made:
        yield made


def without(*names: str) -> dict[str, Dimension]:
    return {other: dimension for other, dimension in dimensions().items() if other not in names}


class Missing(PrefixReuse):
    """Nothing is found, so nothing copied from what was found."""

    values = (MISS,)


def expect_found(report: Report, where: str) -> None:
    """Different answers, none of them by an engine that broke; at least one says where it parted."""
    assert not report.passed and report.differences
    for difference in report.differences:
        assert difference.what in ("token", "log-probability", "prompt log-probability", "end"), difference
        assert difference.position is not None and difference.expected != difference.found
    assert any(where in (one.first_op or "") or where in one.remark for one in report.differences)
    if any(difference.what == "token" for difference in report.differences):
        assert any(difference.margin is not None for difference in report.differences)
    assert any(line.startswith("DIFFERENT") for line in report.lines()) and report.lines()[-1].startswith("FAILED")


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (ShortTail, IN_ATTENTION),
        (NoCopy, IN_ATTENTION),
        (SwappedHeads, IN_ATTENTION),
        (SwappedHits, IN_ATTENTION),
        (BatchDependent, IN_ATTENTION),
        (RowNoise, IN_CHOICE),
        (OneNoise, IN_CHOICE),
    ],
)
def test_a_fault_of_the_backend_is_found(parts: Parts, fault: type[Double], where: str) -> None:
    rig, cases = parts
    double = fault(rig.executable)
    report = verify(with_executable(rig, double), cases, ALL)
    assert double.steps > 0
    expect_found(report, where)


def test_a_kernel_that_depends_on_the_batch_is_found(
    parts: Parts, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The same model with one channel an ulp off computes the steps that have several sequences."""
    rig, cases = parts
    dtype = request.node.callspec.params["parts"]
    with tiny_rig(nudged_checkpoint(tmp_path, dtype), dtype) as (near, _):
        double = OtherKernel(rig.executable, near.executable)
        report = verify(with_executable(rig, double), cases, ALL)
    assert double.steps > 0
    expect_found(report, NUDGED_OP)
    several = ("neighbours", "n=3", "in flight")  # each brings steps of several sequences about
    assert all(any(value in several for value in one.cell.values()) for one in report.differences)


def test_a_kernel_that_is_the_same_is_no_fault(parts: Parts, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Borrowed KV alone changes nothing, so that it is the ulp that was found."""
    rig, cases = parts
    with tiny_rig(tiny_checkpoint(tmp_path), request.node.callspec.params["parts"]) as (same, _):
        double = OtherKernel(rig.executable, same.executable)
        report = verify(with_executable(rig, double), cases, Extent(12))
    assert double.steps > 0 and report.passed, "\n".join(report.lines())


def test_a_stale_block_of_the_tree_is_found(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.schedule.scheduler.Blocks", StaleBlocks)
    monkeypatch.setattr(StaleTree, "found", 0)
    # Among more schedules such a tree breaks before it tells.
    report = verify(*parts, Extent(48), over=without("decode_calls", "evicted_prefixes"))
    assert StaleTree.found > 0
    expect_found(report, IN_ATTENTION)


def test_forgotten_penalties_are_found(parts: Parts) -> None:
    rig, cases = parts
    double = LostEdits(rig.executable)
    report = verify(replace(rig, executable=double, runner=forgetful_runner(double)), cases, ALL)
    assert double.steps > 0
    expect_found(report, IN_CHOICE)
    assert all("preemption" in one.cell and one.cell["preemption"] != "none" for one in report.differences)


@pytest.mark.parametrize(("fault", "dimension"), [(NoCopy, "fork_count"), (SwappedHeads, "fork_count")])
def test_it_is_the_dimension_that_finds_the_fault(parts: Parts, fault: type[Double], dimension: str) -> None:
    """Without it, and without copies of what was found, the fault stays hidden."""
    rig, cases = parts
    over = {**without(dimension), "prefix_reuse": Missing()}
    report = verify(with_executable(rig, fault(rig.executable)), cases, Extent(16), over=over)
    assert report.passed and report.schedules == len(report.cells) == 16


def test_parts_of_blocks_that_are_not_copied_are_found(parts: Parts) -> None:
    rig, cases = parts
    over = {"prefix_reuse": dimensions()["prefix_reuse"]}
    report = verify(with_executable(rig, NoCopy(rig.executable)), cases, Extent(20), over=over)
    assert report.differences and all(one.cell["prefix_reuse"] != MISS for one in report.differences)
    assert any(one.cell["prefix_reuse"] == PART for one in report.differences)


def test_blocks_that_were_found_are_wrong_only_where_some_are_found(parts: Parts) -> None:
    rig, cases = parts
    double = SwappedHits(rig.executable)
    over = {"prefix_reuse": dimensions()["prefix_reuse"]}
    report = verify(with_executable(rig, double), cases, Extent(12), over=over)
    assert double.steps > 0 and report.differences
    assert all(one.cell["prefix_reuse"] != "miss" for one in report.differences)


def test_penalties_are_forgotten_unseen_where_nobody_is_preempted(parts: Parts) -> None:
    rig, cases = parts
    double = LostEdits(rig.executable)
    forgetful = replace(rig, executable=double, runner=forgetful_runner(double))
    assert verify(forgetful, cases, Extent(24), over=without("preemption")).passed


def test_an_engine_that_breaks_is_a_difference(parts: Parts) -> None:
    rig, cases = parts
    report = verify(with_executable(rig, Torn(rig.executable)), cases, Extent(3))
    assert not report.passed and report.schedules == 3
    assert {one.what for one in report.differences} == {"a break"}
    assert all("the engine broke: ValueError: torn" in one.remark for one in report.differences)


class Restless(Preemption):
    """Lets each step compute one token, and takes it away before the next."""

    values = Preemption.values[:2]

    def between(self, value: str, live: Live) -> None:
        live.limit_pieces(1)
        for request_id in live.drawn:
            live.engine.scheduler.preempt(request_id)


def test_requests_that_never_end_are_a_difference(parts: Parts) -> None:
    report = verify(*parts, Extent(2), over={"restless": Restless()})
    assert all("are not over after" in one.remark for one in report.differences)
    assert len(report.differences) == 3 and report.others == 1


def test_what_does_not_happen_again_is_said_so(parts: Parts) -> None:
    rig, cases = parts
    report = verify(with_executable(rig, Once(rig.executable)), cases, Extent(3))
    (difference,) = report.differences
    assert "something depends on time" in difference.remark and difference.first_op is None


def test_a_difference_names_a_schedule_that_shows_it_again(parts: Parts) -> None:
    rig, cases = parts
    faulty = with_executable(rig, SwappedHeads(rig.executable))
    first = verify(faulty, cases, ALL).differences[0]
    again = verify(faulty, cases, Extent(only=first.schedule)).differences
    assert first in again


def test_only_some_differences_are_described() -> None:
    one = Difference(3, {"a": "x"}, "story", "greedy", "0/1", "token", 4, "7", "9", 0.25, "token index 37, head")
    report = Report(
        seed=0, schedules=1, answers=9, tokens=9, steps=9, seconds=1.0, cells=(), differences=(one,), others=5
    )
    assert not report.passed
    assert report.lines()[:5] == [
        "DIFFERENT  token at position 4: story, greedy (request 0/1)",
        "  schedule 3 (a: x)",
        "  expected 7, found 9; alone, the two likeliest tokens there are 0.25 apart",
        "  first op that differed: token index 37, head",
        "DIFFERENT  and 5 more answers",
    ]
