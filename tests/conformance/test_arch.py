"""Every model family: tiny checkpoints of its own against transformers, fed whole, in chunks and beside others."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import TOYS, oracle_logits, prompt, respell, save, worst
from transformers import PreTrainedModel

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.core.errors import UnsupportedModelError
from pelton.models import ARCHS, arch_for, build_module, config_notes

TOLERANCE = 1e-4
LENGTHS = (1, 3, 31, 33, 300)
Tiny = tuple[PreTrainedModel, Checkpoint]
Make = Callable[[str, str | None], Tiny]


def configs() -> list[tuple[str, str | None]]:
    """All families with all their variants; None is a toy's main config."""
    variants = {family: TOYS[family].variants if family in TOYS else () for family in entries("arch")}
    return [(family, variant) for family in variants for variant in (None, *variants[family])]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Family and variant -> transformers' model and the files it saved; made once."""
    made: dict[tuple[str, str | None], Tiny] = {}

    def make_one(family: str, variant: str | None) -> Tiny:
        if (family, variant) not in made:
            model = TOYS[family].made(variant)
            folder: Path = save(model, tmp_path_factory.mktemp(family))
            checkpoint = open_checkpoint(folder)
            assert isinstance(arch_for(checkpoint.config), ARCHS.get(family))
            made[family, variant] = model, checkpoint
        return made[family, variant]

    return make_one


@pytest.fixture(params=entries("arch"))
def tiny(request: pytest.FixtureRequest, make: Make) -> Tiny:
    return make(request.param, None)


def test_every_family_has_a_toy() -> None:
    assert set(entries("arch")) <= set(TOYS)


def test_config_is_understood(tiny: Tiny) -> None:
    _, checkpoint = tiny
    config, module = checkpoint.config, build_module(checkpoint)
    assert config_notes(config) == ()
    assert module.vocab == config["vocab_size"]
    assert module.context == config.get("max_position_embeddings", module.context)


def test_unknown_keys_are_noted_and_unknown_mathematics_refused(tiny: Tiny) -> None:
    config = tiny[1].config
    assert any("'zeta_gate'" in note for note in config_notes({**config, "zeta_gate": 1}))
    with pytest.raises(UnsupportedModelError, match="clip_qkv"):
        config_notes({**config, "clip_qkv": 8.0})


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize(("family", "variant"), configs())
def test_logits_are_the_oracles(make: Make, family: str, variant: str | None, backend: str) -> None:
    """Whole prompts of 1 to 300 tokens, each with the positions for texts of its length, and one in chunks."""
    model, checkpoint = make(family, variant)
    assert config_notes(checkpoint.config) == ()
    for length in LENGTHS:
        tokens, driver = prompt(length), Driver(backend, build_module(checkpoint, length))
        theirs = oracle_logits(model, tokens)
        assert length == 1 or theirs.std() > 1
        assert worst(driver.logits({"whole": tokens})["whole"], theirs) < TOLERANCE, length
    assert worst(driver.chunked(tokens, 37, "in chunks"), theirs) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("chunk", [1, 23])
def test_chunks_do_not_matter(tiny: Tiny, backend: str, chunk: int) -> None:
    model, checkpoint = tiny
    tokens, driver = prompt(110), Driver(backend, build_module(checkpoint))
    assert worst(driver.chunked(tokens, chunk), oracle_logits(model, tokens)) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
def test_neighbours_do_not_matter(tiny: Tiny, backend: str) -> None:
    model, checkpoint = tiny
    prompts = {str(n): prompt(n) for n in (5, 32, 77)}
    driver = Driver(backend, build_module(checkpoint))
    firsts = driver.logits({name: tokens[:-2] for name, tokens in prompts.items()})
    lasts = driver.logits({name: tokens[-2:] for name, tokens in reversed(prompts.items())})
    for name, tokens in prompts.items():
        got = np.concatenate([firsts[name], lasts[name]])
        assert worst(got, oracle_logits(model, tokens)) < TOLERANCE


@pytest.mark.parametrize("backend", entries("backend"))
def test_default_arithmetic_is_near(tiny: Tiny, backend: str) -> None:
    """In bf16 logits move, by more than in fp32 and by no more than bf16's 8 bits explain in a few layers."""
    model, checkpoint = tiny
    tokens, driver = prompt(100), Driver(backend, build_module(checkpoint), exact=False)
    distance = worst(driver.chunked(tokens, 40), oracle_logits(model, tokens))
    assert TOLERANCE < distance < 0.3


@pytest.mark.parametrize("family", entries("arch"))
def test_old_spellings_are_one_model(family: str, tmp_path: Path) -> None:
    """Where there are rotary parameters, as releases before 2025 wrote them."""
    model, tokens = TOYS[family].made(), prompt(60)
    folder = save(model, tmp_path)
    table = json.loads((folder / "config.json").read_text()).get("rope_parameters")
    if not isinstance(table, dict) or "rope_theta" not in table:
        pytest.skip("no rotary parameters, or one table for each kind of layer")
    respell(folder)
    assert "rope_parameters" not in (folder / "config.json").read_text()
    got = Driver("reference", build_module(open_checkpoint(folder))).logits({"a": tokens})["a"]
    assert worst(got, oracle_logits(model, tokens)) < TOLERANCE
