"""Every dimension: it changes no answer, its values come about and are counted, and doing nothing is noticed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from registry_entries import entries
from tests.measure.verify_parts import tiny_checkpoint, tiny_rig

from pelton.measure.verify import DIMENSIONS
from pelton.measure.verify.cases import Cases, Prompt
from pelton.measure.verify.dimension import Dimension, Draft, Live, StepSeen
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.verify import Extent, dimensions, verify

pytest.importorskip("pelton.backends.cpu._native")
Parts = tuple[Rig, Cases]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    folder: Path = tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with tiny_rig(folder) as made:
        yield made


class Idle:
    """A dimension that says what another one says, counts what it counts, and does nothing."""

    def __init__(self, said: Dimension) -> None:
        self._said = said

    @property
    def values(self) -> tuple[str, ...]:
        return self._said.values

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return self._said.suits(value, prompt, block_size)

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        """Nothing."""

    def between(self, value: str, live: Live) -> None:
        """Nothing."""

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        return self._said.count(seen)

    def proof(self, value: str) -> str:
        return self._said.proof(value)


@pytest.mark.parametrize("name", entries("dimension"))
def test_alone_it_changes_no_answer_and_each_value_comes_about(name: str, parts: Parts) -> None:
    dimension = DIMENSIONS.get(name)()
    values = dimension.values
    assert len(set(values)) == len(values) > 1
    assert len({dimension.proof(value) for value in values}) == len(values)
    for seed in range(3):
        report = verify(*parts, Extent(len(values)), seed=seed, over={name: dimension})
        assert report.passed, "\n".join(report.lines())
        assert {cell.cell[name] for cell in report.cells} == set(values)


@pytest.mark.parametrize("name", entries("dimension"))
def test_each_value_finds_a_prompt_that_suits_it(name: str, parts: Parts) -> None:
    dimension = DIMENSIONS.get(name)()
    rig, cases = parts
    for value in dimension.values:
        assert any(dimension.suits(value, prompt, rig.sizes.block_size) for prompt in cases.prompts)


@pytest.mark.parametrize("name", entries("dimension"))
def test_among_the_others_doing_nothing_leaves_cells_empty(name: str, parts: Parts) -> None:
    """In cells where nothing else brings the value about by chance."""
    idle = {other: Idle(made) if other == name else made for other, made in dimensions().items()}
    report = verify(*parts, Extent(48), over=idle)
    assert not report.passed and not report.differences
    said = idle[name]
    missing = {event for cell in report.empty for event in cell.missing}
    assert missing & {said.proof(value) for value in said.values[1:]}, missing
