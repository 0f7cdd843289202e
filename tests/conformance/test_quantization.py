"""Every way to quantise at load: lossy by its own word, bounded, told at the start, never mistaken for the model."""

from pathlib import Path

import numpy as np
import pytest
from registry_entries import entries
from tests.measure.verify_parts import tiny_talker
from tests.program.sources import dense

from pelton import LLM, SamplingParams
from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import SettingError
from pelton.core.needs import Claim
from pelton.core.registry import Choice, parse_choice
from pelton.models import build_module
from pelton.program.coordinates import coordinates
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.quant import QUANTIZATIONS, SCHEMES, method_for, scheme_name
from pelton.quant.load import matrices, quantised
from pelton.quant.rounding import RoundedSource

pytest.importorskip("torch")
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_talker(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def module(folder: Path) -> Module:
    return run_passes(build_module(open_checkpoint(folder)))


@pytest.mark.parametrize("name", entries("quantization"))
def test_it_says_that_it_is_lossy(name: str) -> None:
    assert QUANTIZATIONS.get(name)().needs.claim is Claim.LOSSY


@pytest.mark.parametrize("name", entries("quantization"))
def test_its_label_reads_back(name: str) -> None:
    method = QUANTIZATIONS.get(name)()
    label = method.label()
    assert parse_choice("quantization", label).name == name
    again = method_for("quantization", label)
    assert again.label() == label
    for cols in (64, 96, 100, 128):
        for table in (False, True):
            assert again.rounding(cols, table=table) == method.rounding(cols, table=table)


@pytest.mark.parametrize("name", entries("quantization"))
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"quantization='{name}:odd=1' cannot work: {name} has no option 'odd'"):
        QUANTIZATIONS.get(name)(Choice("quantization", name, {"odd": "1"}))


@pytest.mark.parametrize("name", entries("quantization"))
def test_matrices_are_near_the_numbers(name: str) -> None:
    """By the root of the mean square: what codes of so many bits cost of normal numbers."""
    values = np.random.default_rng(5).standard_normal((20, 256)).astype(np.float32)
    for table in (False, True):
        rounding = QUANTIZATIONS.get(name)().rounding(256, table=table)
        assert rounding is not None
        source = RoundedSource(dense("w", values), rounding)
        got = FORMATS[rounding.format].decode(source.read(), 20, 256)
        error = np.sqrt(np.square(got - values).mean())
        assert 0 < error < {8: 0.012, 4: 0.13}[rounding.bits]


@pytest.mark.parametrize("name", entries("quantization"))
def test_a_module_with_it_is_another(name: str, module: Module) -> None:
    changed, _ = quantised(module, method_for("quantization", name))
    assert coordinates(changed) != coordinates(module)
    assert {s.name for s in matrices(changed) if s.made} == {s.name for s in matrices(module)}
    assert all(storage.source.shape == module.storages[key].source.shape for key, storage in changed.storages.items())
    assert changed.weight_bytes < module.weight_bytes
    storages = list(changed.storages.values())
    facts = SCHEMES.get(scheme_name(storages))().describe(storages, exact=True)
    assert facts.needs.claim is Claim.LOSSY and name in facts.arithmetic


@pytest.mark.parametrize("name", entries("quantization"))
def test_an_engine_with_it_answers_and_tells(name: str, folder: Path) -> None:
    with LLM(str(folder), backend="reference", quantization=name, num_blocks=20) as llm:
        notes = [note for note in llm.report.notes if "not computed with as they are in the file" in note]
        assert len(notes) == 1 and name in notes[0]
        assert name in llm.report.weights
        (output,) = llm.generate("hello", GREEDY, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 8 and output.error is None
