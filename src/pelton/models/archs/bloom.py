"""Bloom (arXiv 2211.05100): centred norms with biases, plain MLPs, and scores that fall with distance (ALiBi)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pelton.attention import ATTENTION
from pelton.attention.kind import AttentionShape
from pelton.layers.alibi import slopes
from pelton.layers.mlp import MLPShape, plain_mlp
from pelton.layers.norm import NormShape
from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader, unsupported
from pelton.models.decoder import EMBEDDING, EMBEDDING_NORM, FINAL_NORM, IDS, POSITIONS, Frame, add_decoder
from pelton.models.spelling import renamed_parts, same_keys
from pelton.models.tensors import renamed, split
from pelton.program.builder import Builder
from pelton.program.module import Module

KEYS = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "seq_length": "max_position_embeddings",
}
# How it was trained or is computed, not what.
NO_MATHEMATICS = (
    "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv"
).split()
FUSED = "self_attn.qkv_proj"
PARTS = {
    "word_embeddings": EMBEDDING.removesuffix(".weight"),
    "word_embeddings_layernorm": EMBEDDING_NORM,
    "token_embd_norm": EMBEDDING_NORM,
    "ln_f": FINAL_NORM,
    "input_layernorm": "input_layernorm",
    "self_attention.query_key_value": FUSED,
    "attn_qkv": FUSED,
    "self_attention.dense": "self_attn.o_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}
PREFIX = "transformer."  # of tensors saved with a head


@dataclass(frozen=True, slots=True)
class BloomConfig:
    """What the config says."""

    frame: Frame
    attention: AttentionShape
    mlp: MLPShape
    context: int
    notes: tuple[str, ...]


class Bloom:
    """Pre-norm decoder without rotary positions, its embeddings normed."""

    names: tuple[str, ...] = ("BloomForCausalLM", "BloomModel", "bloom")

    def config(self, raw: Mapping[str, object]) -> BloomConfig:
        read = ConfigReader(same_keys(raw, KEYS))
        hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
        kv_heads = read.integer("num_key_value_heads", heads)  # only GGUF says it
        inner = read.integer("intermediate_size", 4 * hidden)
        if hidden % heads:
            raise unsupported("num_attention_heads", heads, f"a divisor of hidden_size={hidden}")
        if kv_heads != heads:
            raise unsupported("num_key_value_heads", kv_heads, f"{heads}, as many as num_attention_heads")
        if inner != 4 * hidden:
            raise unsupported("intermediate_size", inner, f"{4 * hidden}, four times hidden_size")
        if read.flag("apply_residual_connection_post_layernorm"):
            raise unsupported("apply_residual_connection_post_layernorm", True, "false")
        shards = read.integer("pretraining_tp", 1)
        if read.flag("slow_but_exact") and shards > 1:
            raise unsupported("slow_but_exact", True, "false, or pretraining_tp=1")
        read.unused(*NO_MATHEMATICS)
        tied = read.flag("tie_word_embeddings")
        frame = Frame(
            layers=read.integer("num_hidden_layers"),
            hidden=hidden,
            vocab=read.integer("vocab_size"),
            norm=NormShape(read.number("layer_norm_eps", 1e-5), centred=True, biased=True),
            tied=tied is not False,
            embed_norm=True,
        )
        width = hidden // heads
        shape = AttentionShape(
            hidden, heads, heads, width, 1 / math.sqrt(width), biased=("q", "k", "v", "o"), slopes=slopes(heads)
        )
        context = read.integer("max_position_embeddings", 2048)
        return BloomConfig(frame, shape, MLPShape(hidden, inner, "gelu_tanh", biased=True), context, read.notes())

    def build(self, config: BloomConfig, source: ModelSource, length: int | None = None) -> Module:
        heads, width = config.attention.heads, config.attention.head_dim

        def rows(part: int) -> range | tuple[int, ...]:
            """Those of q, k or v: one after another in GGUF, taking turns by head elsewhere."""
            if source.layout == "gguf":
                return range(part * heads * width, (part + 1) * heads * width)
            return tuple((3 * head + part) * width + row for head in range(heads) for row in range(width))

        tensors = renamed_parts(renamed(source.tensors, lambda name: name.removeprefix(PREFIX)), PARTS)
        Builder(tensors).check(EMBEDDING, (config.frame.vocab, config.frame.hidden))
        parts = {f"self_attn.{part}_proj": rows(number) for number, part in enumerate("qkv")}
        builder = Builder(split(tensors, FUSED, parts))
        builder.input(IDS)
        builder.input(POSITIONS)
        kind = ATTENTION.get("full")()
        add_decoder(
            builder,
            config.frame,
            attention=lambda x, layer, _: kind.add(builder, x, None, f"{layer}.self_attn", config.attention),
            mlp=lambda x, layer, _: plain_mlp(builder, x, f"{layer}.mlp", config.mlp),
        )
        return builder.finish(vocab=config.frame.vocab, context=config.context)
