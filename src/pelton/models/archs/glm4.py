"""GLM-4 (arXiv 2406.12793): half of each head turns, in neighbouring pairs; newer ones norm what a block gives."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.decoder import Norms
from pelton.models.rope_config import PARTIAL
from pelton.models.spelling import renamed_parts
from pelton.models.standard import (
    FUSED_ATTENTION,
    FUSED_MLP,
    StandardConfig,
    build_standard,
    read_standard,
    unfused,
)
from pelton.program.module import Module

NORMS = Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
GGUF_ONLY = ("ChatglmForCausalLM", "chatglm")  # how GGUF names the older models
OLDER = ("GlmForCausalLM", "glm", *GGUF_ONLY)  # without the second and the fourth of these norms
GGUF_PARTS = {
    "attn_qkv": FUSED_ATTENTION,
    "mlp.up_proj": FUSED_MLP,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}


class Glm4:
    """Grouped-query attention with biases on q, k and v; gate and up are one matrix, and so may be q, k and v."""

    names: tuple[str, ...] = ("Glm4ForCausalLM", "glm4", *OLDER)

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        given = raw.get("architectures")
        name = given[0] if isinstance(given, list) and given else raw.get("model_type")
        width = None if name in GGUF_ONLY else 128
        config = read_standard(read, eps=1.5625e-7, context=131072, head_dim=width, partial=0.5)
        biased = read.flag("attention_bias")
        return replace(
            config,
            frame=replace(config.frame, norms=Norms() if name in OLDER else NORMS),
            attention=replace(config.attention, interleaved=True, biased=("q", "k", "v") if biased else ()),
            open_biases=("attention",) if biased is None else (),
            unsaid=frozenset({PARTIAL} - set(raw)),
            notes=read.notes(),
        )

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        if source.layout == "gguf" and PARTIAL in config.unsaid:  # it is only there if it is not 1
            config = replace(config, rope=replace(config.rope, dim=config.attention.head_dim))
        tensors = renamed_parts(source.tensors, GGUF_PARTS if source.layout == "gguf" else {})
        return build_standard(config, source, length, unfused(config, tensors))
