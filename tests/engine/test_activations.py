"""activations=int8: said at the start, refused where it is of no use, and as exact about itself as anything else."""

from pathlib import Path

import pytest
from tests.engine.test_exactness import TINY_PROMPTS, Way, facts, params

from pelton.core.config import resolve
from pelton.core.errors import SettingError
from pelton.engine.llm import LLM

pytest.importorskip("pelton.backends.cpu._native")

COUNT = 24
SETTINGS = {"quantization": "int8", "activations": "int8"}


def answers(model: Path, way: Way, **settings: object) -> list[object]:
    with LLM(str(model), **way.settings(), **settings) as llm:
        found = facts(llm.generate(TINY_PROMPTS, params(COUNT), use_tqdm=False))
        llm._parts.session.engine.check()
        return found


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> list[object]:
    with LLM(str(tiny_model), **Way(rows=1).settings(), **SETTINGS) as llm:
        return [
            fact
            for prompt, one in zip(TINY_PROMPTS, params(COUNT), strict=True)
            for fact in facts(llm.generate(prompt, one, use_tqdm=False))
        ]


@pytest.mark.parametrize("way", [Way(), Way(budget=1), Way(budget=7), Way(budget=50, blocks=18)], ids=repr)
def test_answers_do_not_depend_on_company(tiny_model: Path, alone: list[object], way: Way) -> None:
    assert answers(tiny_model, way, **SETTINGS) == alone


def test_they_are_others_than_without(tiny_model: Path, alone: list[object]) -> None:
    assert answers(tiny_model, Way(), quantization="int8") != alone


def test_the_start_tells(tiny_model: Path) -> None:
    with LLM(str(tiny_model), **SETTINGS) as llm:
        report = llm._parts.report
    assert any("rounded to 8 bits" in note and "docs/quantization.md" in note for note in report.notes)
    assert any("times activations of 8 bits" in line for line in report.lines())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activations": "int8", "dtype": "float32"}, "activations='int8' and dtype='float32' cannot work together"),
        ({"activations": "int8", "linear_form": "values"}, "and linear_form='values' cannot work together"),
        ({"activations": "fp8"}, "activations='fp8' cannot work. It must be auto or int8"),
    ],
)
def test_what_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        resolve("m", settings)


def test_a_model_without_codes_is_told_what_to_add(tiny_model: Path) -> None:
    with pytest.raises(SettingError, match="has no effect.*quantization='int8'"):
        LLM(str(tiny_model), activations="int8")
