"""OLMo 2 (arXiv 2501.00656): norms stand after attention and MLP, not before, and q and k are normed as whole rows."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.decoder import Norms
from pelton.models.spelling import renamed_parts
from pelton.models.standard import StandardConfig, build_standard, read_biases, read_standard
from pelton.program.module import Module

AFTER_ATTENTION, AFTER_MLP = "post_attention_layernorm", "post_feedforward_layernorm"
GGUF_PARTS = {"post_attention_norm": AFTER_ATTENTION, "post_ffw_norm": AFTER_MLP}


class Olmo2:
    """Otherwise Llama's decoder."""

    names: tuple[str, ...] = ("Olmo2ForCausalLM", "olmo2")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        config = read_biases(read, read_standard(read, eps=1e-5, context=2048), "attention")
        frame = replace(config.frame, norms=Norms(None, AFTER_ATTENTION, None, AFTER_MLP))
        attention = replace(config.attention, row_norm=frame.norm)
        return replace(config, frame=frame, attention=attention, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_standard(config, source, length, renamed_parts(source.tensors, GGUF_PARTS))
