"""Tiny models with every kind of positions against transformers in fp32, on every backend, at 1 to 300 tokens.

Where positions depend on how long a text is, transformers looks at each text and we at a length that is set once: the
same where that length is the text's.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import TOYS, oracle_logits, prompt, respell, save, worst

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.layers import ROPES
from pelton.models import build_module

TOLERANCE = 1e-4
LENGTHS = (1, 2, 33, 64, 65, 300)
ORIGINAL = "original_max_position_embeddings"
SHORT, LONG = [1.0, 1.0, 1.1, 1.1, 1.2, 1.3, 1.4, 1.5], [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0]
LISTS = {"short_factor": SHORT, "long_factor": LONG, ORIGINAL: 64}
YARN = {"factor": 4.0, ORIGINAL: 64}


@dataclass(frozen=True)
class Positions:
    """A scaling, and other fields of the config; `by_length`: the module is made for each text's own length."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    family: str = "llama"
    fields: dict[str, Any] = field(default_factory=dict)
    by_length: bool = False


POSITIONS: dict[str, Positions] = {
    "default": Positions("default", {"rope_theta": 20000.0}),
    "linear": Positions("linear", {"factor": 2.5}),
    "dynamic": Positions("dynamic", {"factor": 4.0}, fields={"max_position_embeddings": 64}, by_length=True),
    "yarn": Positions("yarn", YARN),
    "yarn, plain temperature": Positions("yarn", {**YARN, "attention_factor": 1.0}),
    "yarn, two temperatures": Positions("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False}),
    "yarn, ramp moved": Positions("yarn", {**YARN, "beta_fast": 4.0, "beta_slow": 0.5, "rope_theta": 500.0}),
    "llama3": Positions("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}),
    "longrope": Positions("longrope", LISTS, by_length=True),
    "longrope, told": Positions("longrope", {**LISTS, "attention_factor": 1.3}, by_length=True),
    "yarn in Qwen": Positions("yarn", YARN, "qwen3", {"use_sliding_window": False, "head_dim": 16}),
    "longrope in Phi": Positions("longrope", LISTS, "phi3", {ORIGINAL: 64, "sliding_window": None}, by_length=True),
}


def made(positions: Positions, folder: Path) -> tuple[Any, Path]:
    """transformers' model and the folder with its files."""
    rope = {"rope_type": positions.kind, "rope_theta": 10000.0, **positions.options}
    model = TOYS[positions.family].made(rope_parameters=rope, **positions.fields)
    return model, save(model, folder)


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("name", POSITIONS)
def test_logits_are_the_oracles(name: str, backend: str, tmp_path: Path) -> None:
    positions = POSITIONS[name]
    model, folder = made(positions, tmp_path)
    checkpoint = open_checkpoint(folder)
    for length in LENGTHS:
        driver = Driver(backend, build_module(checkpoint, length if positions.by_length else None))
        tokens = prompt(length)
        theirs = oracle_logits(model, tokens)
        assert worst(driver.logits({"a": tokens})["a"], theirs) < TOLERANCE, length


@pytest.mark.parametrize("name", [name for name, case in POSITIONS.items() if case.by_length])
def test_the_length_matters(name: str, tmp_path: Path) -> None:
    """A module made for short texts computes others than one made for long ones: the comparison above can fail."""
    model, folder = made(POSITIONS[name], tmp_path)
    checkpoint, tokens = open_checkpoint(folder), prompt(300)
    theirs = oracle_logits(model, tokens)
    short = Driver("cpu", build_module(checkpoint, 64)).logits({"a": tokens})["a"]
    assert worst(short, theirs) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["linear", "dynamic", "yarn", "llama3", "longrope"])
def test_the_old_spelling_is_the_same(name: str, tmp_path: Path) -> None:
    positions = POSITIONS[name]
    _, folder = made(positions, tmp_path)
    new = build_module(open_checkpoint(folder), 200)
    respell(folder)
    old = build_module(open_checkpoint(folder), 200)
    assert tables(old) == tables(new)


def tables(module: Any) -> list[Any]:
    return [dict(op.attrs) for op in module.entries["target"].ops if op.kind == "rope_table"]


def test_every_kind_is_here() -> None:
    """`ntk` is none of transformers'; the conformance tests hold it against its formula."""
    assert {case.kind for case in POSITIONS.values()} | {"ntk"} == set(ROPES.names())
