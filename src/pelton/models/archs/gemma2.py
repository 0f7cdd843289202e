"""Gemma 2 (arXiv 2408.00118): every other layer has a window; scores and logits are capped softly."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader, unsupported
from pelton.models.gemma import build_gemma, read_cap, read_gemma, read_pattern
from pelton.models.standard import StandardConfig, read_standard
from pelton.program.module import Module

LARGEST = 46  # layers of the model whose scores are scaled by hidden / heads


class Gemma2:
    """2B, 9B and 27B."""

    names: tuple[str, ...] = ("Gemma2ForCausalLM", "gemma2")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        config = read_gemma(read, raw, read_standard(read, eps=1e-6, context=8192, tied=True, head_dim=256))
        windows = read_pattern(read, raw, window=4096, period=2)
        if (other := read.optional("sliding_window_size")) not in (None, read.integer("sliding_window", 4096)):
            raise unsupported("sliding_window_size", other, "the same as sliding_window")
        return replace(
            config,
            attention=replace(config.attention, softcap=read_cap(read, raw, "attn_logit_softcapping", 50.0)),
            frame=replace(config.frame, softcap=read_cap(read, raw, "final_logit_softcapping", 30.0)),
            windows=windows,
            notes=read.notes(),
        )

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_gemma(config, source, length, source.tensors, LARGEST)
