"""Every model family, every field of its toy's config: flipped, it moves both sides' logits alike, or it is refused.

A field left out means what it means to transformers. Nothing here knows a family: values come from each field's type,
and from a table for what is said in words.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import TOYS, oracle_logits, prompt, save, worst
from tests.oracle.toy import Toy

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.models import build_module, config_notes
from pelton.models.config import HARMLESS

TOLERANCE = 1e-4
TOKENS = prompt(120)
# Fields that mean something and yet move no logits of such a prompt; files that have a head of their own keep it.
STILL = {"max_position_embeddings", "tie_word_embeddings"}
LEFT_OUT = "left out"
WORDS: dict[str, list[Any]] = {
    "hidden_act": ["silu", "gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["silu", "gelu_pytorch_tanh", "relu"],
    "rope_type": ["default", "linear", "llama3"],
}
# What transformers raises for configs and weights that do not fit.
TROUBLE = (
    ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, StrictDataclassError, TypeError, ValueError,
)  # fmt: skip


def fields(config: Mapping[str, Any], only: Mapping[str, Any] | None = None) -> Iterator[tuple[str, ...]]:
    """Paths to all values that may matter, or to those that differ from `only`."""
    for name, value in config.items():
        if name in HARMLESS or (only is not None and only.get(name) == value):
            continue
        if isinstance(value, dict):
            yield from ((name, *path) for path in fields(value))
        else:
            yield (name,)


def written(toy: Toy, variant: str | None = None) -> dict[str, Any]:
    """config.json's content."""
    found: dict[str, Any] = json.loads(toy.family.config_class(**toy.config_of(variant)).to_json_string())
    return found


def others(field: str, value: Any) -> list[Any]:
    """Values of the same type that the field could have instead."""
    if field in WORDS:
        return [word for word in WORDS[field] if word != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, *([value // 2] if value > 1 else [])]
    if isinstance(value, float):
        return [value * 2, value / 4 + 0.01]
    if isinstance(value, list):
        return [changed for changed in (value[::-1], [value[-1]] * len(value)) if changed != value]
    if value is None:  # caps are fractions, whatever else may be missing is a whole number
        return [16.0 if "softcap" in field else 16]
    return [f"{value}_"]


def at(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    return at(config[path[0]], path[1:]) if path else config


def replaced(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The config with another value at the path, or without it."""
    first, *rest = path
    if not rest and value is LEFT_OUT:
        return {name: known for name, known in config.items() if name != first}
    return {**config, first: replaced(config[first], tuple(rest), value) if rest else value}


def theirs(toy: Toy, folder: Path) -> NDArray[np.float32] | None:
    """transformers' logits of these files; None where it cannot use all of them, or needs more."""
    try:
        model, loaded = toy.family.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        return None if any(loaded.values()) else oracle_logits(model.eval(), TOKENS)
    except TROUBLE:
        return None


def ours(folder: Path) -> NDArray[np.float32] | str:
    """Our logits of these files, or why we refuse them."""
    checkpoint = open_checkpoint(folder)
    try:
        return Driver("reference", build_module(checkpoint, len(TOKENS))).logits({"a": TOKENS})["a"]
    except (UnsupportedModelError, CheckpointError) as refusal:
        return str(refusal)
    finally:
        checkpoint.close()


def judged(toy: Toy, folder: Path, path: tuple[str, ...], base: NDArray[np.float32]) -> tuple[bool, str]:
    """Whether the field's new value in the files moves logits or is refused, and what is wrong with that."""
    we, they = ours(folder), theirs(toy, folder)
    if isinstance(we, str):
        named = they is None or path[0] in we or path[-1] in we
        return True, "" if named else f"is refused without its name: {we}"
    if they is None:
        return True, "is taken, but transformers refuses it"
    far = worst(we, they)
    return worst(they, base) > 100 * TOLERANCE, "" if far < TOLERANCE else f"differs by {far:.1e}"


@pytest.mark.parametrize("family", entries("arch"))
def test_flipped_fields_move_both_alike_or_are_refused(family: str, tmp_path: Path) -> None:
    toy, moved, problems = TOYS[family], {}, []
    main = written(toy)
    for variant in (None, *toy.variants):
        model = toy.made(variant)
        folder, base = save(model, tmp_path / str(variant)), oracle_logits(model, TOKENS)
        config = json.loads((folder / "config.json").read_text())
        for path in fields(config, main if variant else None):
            name = ".".join(path)
            for other in others(path[-1], at(config, path)):
                (folder / "config.json").write_text(json.dumps(replaced(config, path, other)))
                moves, wrong = judged(toy, folder, path, base)
                moved[name] = moves or moved.get(name, False)
                problems += [f"{variant}: {name}={other!r} {wrong}"] if wrong else []
    assert not problems, "\n".join(problems)
    idle = [name for name, moves in moved.items() if not moves and name.split(".")[-1] not in STILL]
    assert sorted(idle) == sorted(toy.idle), "choose toys so that each field matters"


@pytest.mark.parametrize("family", entries("arch"))
def test_fields_left_out_mean_what_they_mean_to_transformers(family: str, tmp_path: Path) -> None:
    """Where both sides can do without a field. (What the tensors show may be left out on our side alone.)"""
    toy, problems, compared = TOYS[family], [], 0
    folder = save(toy.made(), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for path in fields(config):
        (folder / "config.json").write_text(json.dumps(replaced(config, path, LEFT_OUT)))
        we, they = ours(folder), theirs(toy, folder)
        if they is not None and not isinstance(we, str):
            compared += 1
            problems += [f"without {'.'.join(path)}: differs"] if worst(we, they) >= TOLERANCE else []
    assert not problems, "\n".join(problems)
    assert compared >= 3


@pytest.mark.parametrize("family", entries("arch"))
def test_harmless_fields_need_no_note(family: str) -> None:
    config = {**written(TOYS[family]), "architectures": [TOYS[family].model]}
    assert config_notes(config) == ()
    for name, value in config.items():
        if name in HARMLESS - {"architectures", "model_type"}:
            assert all(config_notes({**config, name: other}) == () for other in others(name, value))
