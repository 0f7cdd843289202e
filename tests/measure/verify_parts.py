"""A tiny random model to verify and to measure with, its prompts, and the rig over it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from tests.engine.fakes import byte_tokenizer
from tests.oracle.tiny import save, tiny_llama

from pelton.core.clock import SystemClock
from pelton.core.config import resolve
from pelton.engine.build import build_engine
from pelton.measure.verify.cases import WAYS, Cases, Prompt
from pelton.measure.verify.prompts import built_in
from pelton.measure.verify.report import Report
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.start import fitted, rig_of
from pelton.measure.verify.verify import dimensions

VOCAB = 160
MAX_TOKENS = 12
NUDGED_OP = "layer 0 linear (out)"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def tiny_checkpoint(folder: Path) -> Path:
    """Two layers, two KV heads, 160 tokens, no tokenizer."""
    return save(tiny_llama(), folder)


def nudged_checkpoint(folder: Path, dtype: str) -> Path:
    """The same with one channel of layer 0's MLP an ulp of the type that it is computed in further from 0."""
    model = tiny_llama()
    with torch.no_grad():
        weight = model.model.layers[0].mlp.down_proj.weight[0]
        held = weight.to(torch.float32 if dtype == "float32" else torch.bfloat16)
        weight.copy_(torch.nextafter(held, held * 2))
    return save(model, folder)


def tiny_talker(folder: Path, **changes: object) -> Path:
    """The same with a tokenizer of bytes and a chat template, for what is run by its command."""
    save(tiny_llama(vocab_size=272, **changes), folder)
    byte_tokenizer()._inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>"}))
    return folder


def letters(text: str) -> list[int]:
    """A token for each character, below VOCAB."""
    return [ord(sign) % VOCAB for sign in text]


def tiny_prompts() -> tuple[Prompt, ...]:
    return tuple(built_in(letters))


def unproven(report: Report) -> set[tuple[str, str]]:
    """(dimension, value) of all that are registered whose event did not happen in any cell of the report with it."""
    return {
        (name, value)
        for name, dimension in dimensions().items()
        for value in dimension.values
        if not any(cell.cell[name] == value and cell.events.get(dimension.proof(value), 0) > 0 for cell in report.cells)
    }


@contextmanager
def tiny_rig(folder: Path, dtype: str = "float32") -> Iterator[tuple[Rig, Cases]]:
    """The checkpoint in `folder`, loaded, with the built-in prompts."""
    prompts = tiny_prompts()
    config = fitted(resolve(str(folder), {"dtype": dtype, "threads": 1}), prompts, MAX_TOKENS)
    clock = SystemClock()
    parts = build_engine(config, clock)
    try:
        yield rig_of(parts, config, clock), Cases(prompts, WAYS, MAX_TOKENS, frozenset({7}))
    finally:
        parts.close()


def with_executable(rig: Rig, executable: object) -> Rig:
    """The rig with another executable in place of its own."""
    return replace(rig, executable=executable)  # type: ignore[arg-type]
