"""Qwen3 (arXiv 2505.09388): Llama's decoder whose q and k are normed head by head; upper layers may have a window."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.standard import (
    StandardConfig,
    build_standard,
    read_biases,
    read_standard,
    upper_windows,
)
from pelton.program.module import Module


class Qwen3:
    """Heads of 128 where the config does not say. Windows as in the generation before."""

    names: tuple[str, ...] = ("Qwen3ForCausalLM", "qwen3")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        config = read_biases(read, read_standard(read, eps=1e-6, context=32768, head_dim=128), "attention")
        windows = upper_windows(read, config.frame.layers)
        attention = replace(config.attention, head_norm=config.frame.norm)
        return replace(config, attention=attention, windows=windows, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_standard(config, source, length)
