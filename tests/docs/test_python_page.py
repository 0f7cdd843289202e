"""docs/python.md against the code: every setting, method, parameter and field is there, with its default and range."""

import ast
import inspect
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path

import pytest

from pelton import LLM, CompletionOutput, RequestOutput, SamplingParams
from pelton.core.config import (
    BackendSection,
    CacheSection,
    EngineConfig,
    FetchSection,
    ModelSection,
    ScheduleSection,
    resolve,
)
from pelton.core.errors import RequestError
from pelton.core.request import Logprob, RequestMetrics

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """The cells of the table whose first column has this title."""
    table = PAGE[PAGE.index(f"| {title} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def told(title: str) -> dict[str, object]:
    """Name -> default, as the table has them."""
    return {name.strip("`"): ast.literal_eval(default.strip("`")) for name, default, _ in rows(title)}


def defaults(*kinds: "type[object]") -> dict[str, object]:
    found: list[Field[object]] = [field for kind in kinds for field in fields(kind)]  # type: ignore[arg-type]
    return {field.name: field.default for field in found if field.default is not MISSING}


def test_every_setting_has_its_default() -> None:
    wanted = defaults(ModelSection, FetchSection, CacheSection, ScheduleSection, BackendSection)
    seed = {field.name: field.default for field in fields(EngineConfig)}["seed"]
    assert told("Setting") == {**wanted, "seed": seed}
    resolve("m", told("Setting"))


def test_every_parameter_has_its_default() -> None:
    assert told("Parameter") == defaults(SamplingParams)


RANGES = [
    (name.strip("`"), float(match[1]), float(match[2]))
    for name, _, values in rows("Parameter")
    if (match := re.match(r"(-?[\d.]+) to ([\d.]+)", values))
]


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_ranges_are_those_of_the_code(name: str, least: float, most: float) -> None:
    whole = name in ("n", "seed", "logprobs", "prompt_logprobs")
    low, high = (int(least), int(most) if name != "seed" else 2**64 - 1) if whole else (least, most)
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]
    step = 1 if whole else 1e-5
    for value in (low - step, high + (1 if whole else 0.01)):
        with pytest.raises(RequestError, match=f"{name}="):
            SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_there_are_ranges() -> None:
    assert len(RANGES) >= 8


def test_a_parameter_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


def test_every_method_is_there_with_its_arguments() -> None:
    methods = {name: value for name, value in vars(LLM).items() if inspect.isfunction(value) and name[0] != "_"}
    wanted = {name: list(inspect.signature(method).parameters)[1:] for name, method in methods.items()}
    shown = {}
    for cell, _ in rows("Method"):
        name, _, words = cell.strip("`").rstrip(")").partition("(")
        shown[name] = words.split(", ") if words else []
    assert shown == wanted
    assert "`report`" in PAGE


@pytest.mark.parametrize("kind", [RequestOutput, CompletionOutput])
def test_every_field_of_an_answer_is_there(kind: "type[RequestOutput] | type[CompletionOutput]") -> None:
    shown = [name.strip("`") for name, _ in rows(f"Field of `{kind.__name__}`")]
    assert shown == [field.name for field in fields(kind)]
    for other in (RequestMetrics, Logprob):
        assert all(f"`{field.name}`" in PAGE for field in fields(other))


def test_the_examples_run(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(codes) == 2
    for code in codes:
        exec(compile(code, "docs/python.md", "exec"), {})
        assert "Paris" in capsys.readouterr().out
