"""Steps of a real model, measured here: what is made of them is sound, and kept. No time is judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.probed import canned
from tests.cli.running import invoke

from pelton.backends.cpu.probe.identity import identify
from pelton.cli.commands.simulate import times
from pelton.core.clock import SystemClock
from pelton.core.config import resolve
from pelton.measure.simulate.calibrate import measured
from pelton.measure.step_time import Shape


def test_each_shape_is_measured(smollm2: Path) -> None:
    shapes = [Shape(1, 64), Shape(1, 64, 3), Shape(32, 0)]
    told: list[Shape] = []
    steps = measured(resolve(smollm2, {}), shapes, 49_152, SystemClock(), lambda: told.append(shapes[len(told)]))
    assert [timed.shape for timed in steps.timed] == shapes == told
    assert [timed.tokens for timed in steps.timed] == [1, 3, 32]
    assert all(timed.time.step > 0 and min(timed.time.ops) >= 0 for timed in steps.timed)
    assert [count for count, _ in steps.beside] == [1, 3] and all(seconds > 0 for _, seconds in steps.beside)


@pytest.mark.slow
def test_what_was_measured_is_used_the_next_time(
    data: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Of the real cache only the model is needed, by its path.
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    words = ("simulate", str(data / "traces" / "azure_llm_2023_code.csv"), "--requests", "5", "--num-blocks", "300")
    words = (*words, "--max-model-len", "1024", "--model", str(smollm2), "--json")
    rough = invoke(*words)
    table = json.loads(rough.stdout)
    said = "the machine was busy when it was probed" if table["step_times_busy"] else "--calibrate measures steps"
    assert said in rough.stderr and table["step_times"] == "probed"
    first, again = invoke(*words, "--calibrate"), invoke(*words)
    assert json.loads(first.stdout)["step_times"] == "measured", first.stderr
    assert first.stdout == again.stdout
    assert [file.suffix for file in (tmp_path / "steps").iterdir()] == [".json"]


def test_figures_of_a_busy_machine_are_measured_anew_and_marked(
    data: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    busy, quiet = (replace(canned(identify()), load_before=load) for load in (50.0, 0.0))
    made = iter([busy, busy, quiet])
    monkeypatch.setattr(times, "measure", lambda effort, *, threads: next(made))
    words = ("simulate", str(data / "traces" / "azure_llm_2023_code.csv"), "--requests", "5", "--num-blocks", "300")
    words = (*words, "--max-model-len", "1024", "--model", str(smollm2))
    for again in (False, True):
        shown = invoke(*words)
        assert "the machine was busy when it was probed" in shown.stderr and "may be off by a half" not in shown.stderr
        assert ("the kept figures are of a busy one" in shown.stderr) is again
        assert " UTC on a busy machine" in shown.stdout
    table = json.loads(invoke(*words, "--json").stdout)
    assert (table["step_times"], table["step_times_busy"]) == ("probed", False)
    shown = invoke(*words)
    assert "busy" not in shown.stderr + shown.stdout and next(made, None) is None, "what is good is kept"
