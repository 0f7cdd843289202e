"""How long a step may take: never less than the setting, more on machines and for models that need it."""

import pytest

from pelton.engine.process.pace import BYTES_PER_SECOND, TIMES, Pace

GIB = 1 << 30


def test_before_the_first_step_the_models_size_says_how_long() -> None:
    pace = Pace(120.0)
    pace.loaded(GIB // 16)
    assert pace.patience(512) == 120.0
    pace.loaded(40 * GIB)
    assert pace.patience(1) == 120.0
    assert pace.patience(512) == pytest.approx(512 * 40 * GIB / BYTES_PER_SECOND) and pace.patience(512) > 3600


def test_then_the_longest_of_as_many_tokens_or_more() -> None:
    pace = Pace(1.0)
    pace.saw(512, 4.0)
    pace.saw(1, 0.25)
    assert pace.patience(512) == pace.patience(400) == pace.patience(1) == TIMES * 4.0
    pace = Pace(1.0)
    pace.saw(1, 0.25)
    assert pace.patience(1) == TIMES * 0.25
    assert pace.patience(512) == TIMES * 0.25 * 512, "no larger one was seen: in proportion"
    assert Pace(30.0).patience(512) == 30.0


def test_quick_steps_leave_the_setting_as_it_is() -> None:
    pace = Pace(120.0)
    pace.loaded(40 * GIB)
    for _ in range(10):
        pace.saw(64, 0.01)
    assert pace.patience(64) == pace.patience(512) == 120.0


def test_one_step_that_took_long_by_chance_is_forgotten() -> None:
    pace = Pace(1.0)
    pace.saw(8, 600.0)
    assert pace.patience(8) == TIMES * 600
    for _ in range(200):
        pace.saw(8, 0.01)
    assert pace.patience(8) == 1.0


def test_a_step_that_computed_nothing_says_nothing() -> None:
    pace = Pace(1.0)
    pace.saw(0, 50.0)
    assert pace.patience(1) == 1.0
