"""Every model family: a tiny checkpoint of its own against transformers, fed whole, in chunks and beside others."""

from pathlib import Path

import numpy as np
import pytest
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import TINY_MODELS, oracle_logits, prompt, save, worst
from transformers import PreTrainedModel

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import UnsupportedModelError
from pelton.models import ARCHS, arch_for, build_module, config_notes
from pelton.program.module import Module

TOLERANCE = 1e-4
Tiny = tuple[PreTrainedModel, Module, dict[str, object]]


@pytest.fixture(scope="module", params=entries("arch"))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """transformers' model, our Module of its files, and the config in them."""
    model = TINY_MODELS[request.param]()
    folder: Path = save(model, tmp_path_factory.mktemp(request.param))
    checkpoint = open_checkpoint(folder)
    assert isinstance(arch_for(checkpoint.config), ARCHS.get(request.param))
    return model, build_module(checkpoint), checkpoint.config


def test_config_is_understood(tiny: Tiny) -> None:
    _, module, config = tiny
    assert config_notes(config) == ()
    assert module.vocab == config["vocab_size"]
    assert module.context == config["max_position_embeddings"]


def test_unknown_keys_are_noted_and_unknown_mathematics_refused(tiny: Tiny) -> None:
    _, _, config = tiny
    assert any("'zeta_gate'" in note for note in config_notes({**config, "zeta_gate": 1}))
    with pytest.raises(UnsupportedModelError, match="clip_qkv"):
        config_notes({**config, "clip_qkv": 8.0})


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("chunk", [1, 23, 200])
def test_logits_are_the_oracles(tiny: Tiny, backend: str, chunk: int) -> None:
    model, module, _ = tiny
    tokens = prompt(150)
    theirs = oracle_logits(model, tokens)
    assert theirs.std() > 1
    assert worst(Driver(backend, module).chunked(tokens, chunk), theirs) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
def test_neighbours_do_not_matter(tiny: Tiny, backend: str) -> None:
    model, module, _ = tiny
    prompts = {str(n): prompt(n) for n in (3, 32, 77)}
    driver = Driver(backend, module)
    firsts = driver.logits({name: tokens[:-2] for name, tokens in prompts.items()})
    lasts = driver.logits({name: tokens[-2:] for name, tokens in reversed(prompts.items())})
    for name, tokens in prompts.items():
        got = np.concatenate([firsts[name], lasts[name]])
        assert worst(got, oracle_logits(model, tokens)) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
def test_default_arithmetic_is_near(tiny: Tiny, backend: str) -> None:
    """In bf16 logits move, by more than in fp32 and by no more than bf16's 8 bits explain in a few layers."""
    model, module, _ = tiny
    tokens = prompt(100)
    distance = worst(Driver(backend, module, exact=False).chunked(tokens, 40), oracle_logits(model, tokens))
    assert TOLERANCE < distance < 0.3
