"""The Llama family (arXiv 2302.13971, 2407.21783): Llama 2 and 3, SmolLM2 and all that are built like them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pelton.attention import ATTENTION
from pelton.attention.kind import AttentionShape
from pelton.layers.mlp import ACTIVATIONS, MLPShape, gated_mlp
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import rope_table, rotation_of
from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader, unsupported
from pelton.models.decoder import EMBEDDING, IDS, POSITIONS, Frame, add_decoder
from pelton.program.builder import Builder
from pelton.program.module import Module

ROPE_DIVISORS = "rope_freqs.weight"  # GGUF's form of scaled frequencies
IGNORED = (".rotary_emb.inv_freq", ROPE_DIVISORS)  # follows from the config; read when the table is made


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What the config says. `attention_bias`, `mlp_bias` None: not said, the tensors tell."""

    frame: Frame
    attention: AttentionShape
    mlp: MLPShape
    rope: RopeParameters
    context: int
    attention_bias: bool | None
    mlp_bias: bool | None
    notes: tuple[str, ...]


class Llama:
    """Pre-norm decoder with rotary grouped-query attention and a gated MLP."""

    names: tuple[str, ...] = ("LlamaForCausalLM", "llama")

    def config(self, raw: Mapping[str, object]) -> LlamaConfig:
        read = ConfigReader(raw)
        read.flag("is_llama_config")  # some files say what they are twice
        hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
        kv_heads = read.integer("num_key_value_heads", heads)
        head_dim = read.integer("head_dim", hidden // heads if hidden % heads == 0 else None)
        if heads % kv_heads:
            raise unsupported("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads={heads}")
        if head_dim % 2:
            raise unsupported("head_dim", head_dim, "an even number, because rotary embedding turns pairs")
        context = read.integer("max_position_embeddings", 2048)
        frame = Frame(
            layers=read.integer("num_hidden_layers"),
            hidden=hidden,
            vocab=read.integer("vocab_size"),
            eps=read.number("rms_norm_eps", 1e-6),
            tied=read.flag("tie_word_embeddings") or False,
        )
        activation = read.choice("hidden_act", ACTIVATIONS, "silu")
        return LlamaConfig(
            frame=frame,
            attention=AttentionShape(hidden, heads, kv_heads, head_dim, scale=1 / math.sqrt(head_dim)),
            mlp=MLPShape(hidden, read.integer("intermediate_size"), activation),
            rope=read.rope(head_dim, context, default_theta=10000.0),
            context=context,
            attention_bias=read.flag("attention_bias"),
            mlp_bias=read.flag("mlp_bias"),
            notes=read.notes(),
        )

    def build(self, config: LlamaConfig, source: ModelSource) -> Module:
        builder = Builder(source.tensors)
        _check_sizes(builder, config)

        def biased(said: bool | None, layer: str) -> bool:
            return builder.has(f"model.layers.0.{layer}.bias") if said is None else said

        parts = tuple(part for part in "qkvo" if biased(config.attention_bias, f"self_attn.{part}_proj"))
        shape = replace(config.attention, biased=parts, pairs_adjacent=source.layout == "gguf")
        mlp = replace(config.mlp, biased=biased(config.mlp_bias, "mlp.gate_proj"))

        builder.input(IDS)
        divisors = source.tensors.get(ROPE_DIVISORS)
        rope = rope_table(builder, builder.input(POSITIONS), rotation_of(config.rope, divisors))
        kind = ATTENTION.get("full")()
        add_decoder(
            builder,
            config.frame,
            attention=lambda x, layer: kind.add(builder, x, rope, f"{layer}.self_attn", shape),
            mlp=lambda x, layer: gated_mlp(builder, x, f"{layer}.mlp", mlp),
        )
        return builder.finish(vocab=config.frame.vocab, context=config.context, ignored=IGNORED)


def _check_sizes(builder: Builder, config: LlamaConfig) -> None:
    """Holds the config against tensors: tables as large as it claims may only be made once the file is as large."""
    shape = config.attention
    builder.check(EMBEDDING, (config.frame.vocab, config.frame.hidden))
    for part, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        builder.check(f"model.layers.0.self_attn.{part}_proj.weight", (heads * shape.head_dim, shape.hidden))
