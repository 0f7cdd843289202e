"""The flight record tells the last step to whoever shares its memory, and bounds what it keeps."""

import os

from pelton.core.plan import Admission, RowPlan, StateOp, StepPlan
from pelton.engine.process.flight import MOST_NAMES, MOST_ROWS, SIZE, FlightRecord, shared_memory


def pair() -> tuple[FlightRecord, FlightRecord]:
    fd = shared_memory()
    both = FlightRecord(fd), FlightRecord(fd)
    os.close(fd)
    return both


def test_nothing_was_begun() -> None:
    flight = pair()[0].read()
    assert (flight.running, flight.step, flight.described) == (False, 0, ()) and str(flight) == "no step was begun"


def test_the_other_side_reads_the_step_that_runs() -> None:
    ours, theirs = pair()
    admitted = (Admission(3, "abc"), Admission(0, "ü" * 50))
    theirs.begin(StepPlan((RowPlan(3, 0, 32), RowPlan(0, 64, 5)), admitted, state_ops=(StateOp("copy", 1, 2),)), 12.5)
    flight = ours.read()
    assert flight.running and (flight.step, flight.began, flight.rows) == (1, 12.5, 2)
    assert flight.described == (("abc", 0, 32), ("ü" * 32, 64, 5))
    assert str(flight) == (
        f"step 1 was being computed: 37 tokens of 2 rows, 1 block operations: abc [0, 32), {'ü' * 32} [64, 69)"
    )
    theirs.end()
    assert not ours.read().running and "was over" in str(ours.read())
    theirs.begin(StepPlan((RowPlan(3, 32, 1),)), 13.0)
    assert ours.read().step == 2 and ours.read().described == (("abc", 32, 1),)


def test_a_row_is_named_by_who_has_it_now() -> None:
    ours, theirs = pair()
    theirs.begin(StepPlan((RowPlan(1, 0, 1),), (Admission(1, "a long name"),)), 0.0)
    theirs.begin(StepPlan((RowPlan(1, 0, 1),), (Admission(1, "b"),)), 0.0)
    assert ours.read().described == (("b", 0, 1),)


def test_many_rows_are_cut() -> None:
    ours, theirs = pair()
    many = 5000
    admitted = tuple(Admission(row, f"r{row}") for row in range(many))
    theirs.begin(StepPlan(tuple(RowPlan(row, row, 2) for row in reversed(range(many))), admitted), 0.0)
    flight = ours.read()
    assert (flight.rows, flight.tokens, len(flight.described)) == (many, 2 * many, MOST_ROWS)
    assert flight.described[0] == (f"row {many - 1}", many - 1, 2)  # beyond the names that are kept
    assert f"and {many - MOST_ROWS} more" in str(flight)
    theirs.begin(StepPlan((RowPlan(MOST_NAMES - 1, 0, 1),)), 0.0)
    assert ours.read().described[0][0] == f"r{MOST_NAMES - 1}" and SIZE < 1 << 17


def test_an_id_that_is_no_unicode_fails_no_step() -> None:
    ours, theirs = pair()
    theirs.begin(StepPlan((RowPlan(0, 0, 1),), (Admission(0, "\ud800"),)), 0.0)
    assert ours.read().described[0][0] == "\\ud800"
