"""The Mistral family (arXiv 2310.06825): Llama's decoder whose layers may all look back no further than a window.

Their GGUF files say that they are Llamas.
"""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.standard import StandardConfig, build_standard, one_window, read_standard
from pelton.program.module import Module


class Mistral:
    """Mistral 7B and Nemo. A config without `sliding_window` has one of 4096; null means none."""

    names: tuple[str, ...] = ("MistralForCausalLM", "mistral")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        config = read_standard(read, eps=1e-6, context=131072)
        windows = one_window(read, config.frame.layers, 4096)
        return replace(config, windows=windows, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_standard(config, source, length)
