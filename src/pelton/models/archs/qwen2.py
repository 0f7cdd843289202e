"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama's decoder with biases on q, k and v; upper layers may have a window."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.standard import StandardConfig, build_standard, read_standard, upper_windows
from pelton.program.module import Module


class Qwen2:
    """Without `layer_types`, the layers from `max_window_layers` on have the window."""

    names: tuple[str, ...] = ("Qwen2ForCausalLM", "qwen2")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        config = read_standard(read, eps=1e-6, context=32768)
        windows = upper_windows(read, config.frame.layers)
        attention = replace(config.attention, biased=("q", "k", "v"))
        return replace(config, attention=attention, windows=windows, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_standard(config, source, length)
