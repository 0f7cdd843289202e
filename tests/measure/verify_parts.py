"""A tiny random model to verify with, its prompts, and the rig over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.oracle.tiny import save, tiny_llama

from pelton.core.clock import SystemClock
from pelton.core.config import resolve
from pelton.engine.build import build_engine
from pelton.measure.verify.cases import WAYS, Cases, Prompt
from pelton.measure.verify.prompts import built_in
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.start import fitted, rig_of

VOCAB = 160
MAX_TOKENS = 12


def tiny_checkpoint(folder: Path) -> Path:
    """Two layers, two KV heads, 160 tokens, no tokenizer."""
    return save(tiny_llama(), folder)


def letters(text: str) -> list[int]:
    """A token for each character, below VOCAB."""
    return [ord(sign) % VOCAB for sign in text]


def tiny_prompts() -> tuple[Prompt, ...]:
    return tuple(built_in(letters))


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
