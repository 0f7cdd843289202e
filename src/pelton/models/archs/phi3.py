"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219): Llama's decoder with fused projections; all layers may have a window.

Phi-4-mini turns a part of each head only.
"""

from collections.abc import Mapping
from dataclasses import replace

from pelton.layers.rope import ORIGINAL_CONTEXT
from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.rope_config import has_original
from pelton.models.spelling import renamed_parts
from pelton.models.standard import (
    FUSED_ATTENTION,
    FUSED_MLP,
    StandardConfig,
    build_standard,
    one_window,
    read_standard,
    unfused,
)
from pelton.program.module import Module

GGUF_PARTS = {"attn_qkv": FUSED_ATTENTION, "mlp.up_proj": FUSED_MLP}  # the second: ffn_up is fused in this family


class Phi3:
    """One tensor holds q, k and v, one after another, and one the MLP's gate and what it gates."""

    names: tuple[str, ...] = ("Phi3ForCausalLM", "phi3")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        # The family's own, where neither the config nor its rotary table (a GGUF's, or an override's) has one.
        read = ConfigReader(raw if has_original(raw) else {ORIGINAL_CONTEXT: 4096, **raw})
        config = read_standard(read, eps=1e-5, context=4096, partial=1.0)
        windows = one_window(read, config.frame.layers, None)
        return replace(config, windows=windows, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        tensors = renamed_parts(source.tensors, GGUF_PARTS if source.layout == "gguf" else {})
        return build_standard(config, source, length, unfused(config, tensors))
