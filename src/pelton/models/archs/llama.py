"""The Llama family (arXiv 2302.13971, 2407.21783): Llama 2 and 3, SmolLM2 and all that are built like them."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.standard import StandardConfig, build_standard, read_biases, read_standard
from pelton.program.module import Module


class Llama:
    """Pre-norm decoder with rotary grouped-query attention and a gated MLP."""

    names: tuple[str, ...] = ("LlamaForCausalLM", "llama")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        read.flag("is_llama_config")  # some files say what they are twice
        config = read_biases(read, read_standard(read, eps=1e-6, context=2048), "attention", "mlp")
        return replace(config, gguf_pairs=True, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_standard(config, source, length)
