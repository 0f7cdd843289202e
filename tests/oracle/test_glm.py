"""The older of the two classes that GLM-4's family has, with its variants; the newer one is the family's toy."""

from pathlib import Path
from typing import Any

import pytest
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import oracle_logits, prompt, save, worst
from tests.oracle.tiny_more import HALF, OTHERS

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module, config_notes

TOLERANCE = 1e-4
TOY = OTHERS["glm"]
FLIPS: list[tuple[str, Any]] = [
    ("rms_norm_eps", 1e-5),
    ("hidden_act", "gelu_pytorch_tanh"),
    ("rope_parameters", {**HALF, "rope_theta": 500.0}),
    ("rope_parameters", {**HALF, "partial_rotary_factor": 0.25}),
    ("attention_bias", False),
    ("tie_word_embeddings", True),
    ("num_hidden_layers", 1),
]


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("variant", [None, *TOY.variants])
def test_logits_are_the_oracles(tmp_path: Path, variant: str | None, backend: str) -> None:
    model = TOY.made(variant)
    checkpoint = open_checkpoint(save(model, tmp_path))
    assert config_notes(checkpoint.config) == ()
    driver = Driver(backend, build_module(checkpoint))
    for length in (1, 33, 300):
        tokens = prompt(length)
        theirs = oracle_logits(model, tokens)
        assert worst(driver.logits({str(length): tokens})[str(length)], theirs) < TOLERANCE
    assert worst(driver.chunked(tokens, 37, "in chunks"), theirs) < TOLERANCE


@pytest.mark.parametrize(("field", "value"), FLIPS)
def test_every_field_matters(tmp_path: Path, field: str, value: Any) -> None:
    """A flipped field moves the oracle, of the same weights, by far more than the tolerance, and us with it."""
    base, flipped, tokens = TOY.made(), TOY.made(**{field: value}), prompt(120)
    flipped.load_state_dict(base.state_dict(), strict=False)
    flipped.tie_weights()
    theirs = oracle_logits(flipped, tokens)
    assert worst(theirs, oracle_logits(base, tokens)) > 100 * TOLERANCE
    module = build_module(open_checkpoint(save(flipped, tmp_path)))
    assert worst(Driver("reference", module).logits({"a": tokens})["a"], theirs) < TOLERANCE
