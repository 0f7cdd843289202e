"""What most decoder-only families share: the config keys of their parts, and the module these make.

A family that differs in more than a record here can say composes decoder.add_decoder by itself. Invariant: sizes are
held against tensors before any table of those sizes is made.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pelton.attention import ATTENTION
from pelton.attention.kind import AttentionShape
from pelton.layers.mlp import ACTIVATIONS, MLPShape, gated_mlp
from pelton.layers.norm import NormShape
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import longest_text, rope_table, rotation_of, stretched_from
from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader, unsupported
from pelton.models.decoder import EMBEDDING, IDS, POSITIONS, Frame, add_decoder
from pelton.models.rope_config import DIVISOR_TENSORS, with_divisors
from pelton.models.tensors import Tensors, split
from pelton.program.builder import Builder
from pelton.program.module import Module
from pelton.program.weights import TensorSource

ROPE_DIVISORS = "rope_freqs.weight"  # GGUF's form of scaled frequencies
IGNORED = (".rotary_emb.inv_freq", ROPE_DIVISORS, *DIVISOR_TENSORS)  # follow from the config; read with the table
LAYER_KINDS = ("full_attention", "sliding_attention")
PROJECTIONS = ("q", "k", "v", "o")
FUSED_ATTENTION, FUSED_MLP = "self_attn.qkv_proj", "mlp.gate_up_proj"


@dataclass(frozen=True, slots=True)
class StandardConfig:
    """A decoder of rotary attention and gated MLPs.

    `windows`: each layer's (see AttentionShape), none where it is empty. `unturned`: layers without rotary positions.
    `open_biases`: the parts ("attention", "mlp") of which the config does not say whether they have biases; the tensors
    do. `gguf_pairs`: GGUF files of the family keep rotary pairs side by side (AttentionShape.pairs_adjacent).
    `window_rope`: of layers with a window, where they turn otherwise than the others. `unsaid`: keys that are not
    there, by which a GGUF means something else than a folder.
    """

    frame: Frame
    attention: AttentionShape
    mlp: MLPShape
    rope: RopeParameters
    context: int
    notes: tuple[str, ...] = ()
    windows: tuple[int | None, ...] = ()
    unturned: frozenset[int] = frozenset()
    open_biases: tuple[str, ...] = ()
    gguf_pairs: bool = False
    window_rope: RopeParameters | None = None
    unsaid: frozenset[str] = frozenset()


def read_standard(
    read: ConfigReader,
    *,
    eps: float,
    context: int,
    theta: float = 10000.0,
    tied: bool = False,
    head_dim: int | None = None,
    partial: float | None = None,
    layer_type: str | None = None,
) -> StandardConfig:
    """The keys that all these families have; the arguments hold where the config does not say.

    Heads are of `head_dim` or else hidden / heads. `partial`: the family may turn a part of each head only, and turns
    this share where the config does not say. `layer_type`: as for ConfigReader.rope. What else a family reads comes
    afterwards; then it sets the record's notes.
    """
    attention = _read_attention(read, head_dim)
    said, longest = read.flag("tie_word_embeddings"), read.integer("max_position_embeddings", context)
    rotated = attention.head_dim if partial is None else read.rotated(attention.head_dim, partial, layer_type)
    rope = read.rope(rotated, longest, theta, layer_type)
    frame = Frame(
        layers=read.integer("num_hidden_layers"),
        hidden=attention.hidden,
        vocab=read.integer("vocab_size"),
        norm=NormShape(read.number("rms_norm_eps", eps)),
        tied=tied if said is None else said,
    )
    activation = read.choice("hidden_act", ACTIVATIONS, "silu")
    return StandardConfig(
        frame=frame,
        attention=attention,
        mlp=MLPShape(attention.hidden, read.integer("intermediate_size"), activation),
        rope=rope,
        context=longest_text(rope),
    )


def length_notes(config: object, length: int | None) -> tuple[str, ...]:
    """What the user should know of positions that depend on the longest text (`length`: as for Arch.build)."""
    if not isinstance(config, StandardConfig) or (short := stretched_from(config.rope, length)) is None:
        return ()
    return (
        f"Positions are scaled for requests of more than {short} tokens, for shorter ones too; "
        f"a max_model_len of at most {short} leaves them as they are in short ones.",
    )


def read_biases(read: ConfigReader, config: StandardConfig, *parts: str) -> StandardConfig:
    """The config with what it says of biases of these parts ("attention", "mlp")."""
    said = {part: read.flag(f"{part}_bias") for part in parts}
    return replace(
        config,
        attention=replace(config.attention, biased=PROJECTIONS if said.get("attention") else config.attention.biased),
        mlp=replace(config.mlp, biased=said.get("mlp") or False),
        open_biases=tuple(part for part in parts if said[part] is None),
    )


def read_windows(read: ConfigReader, window: int | None, sliding: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Each layer's window by the config's list of layer kinds or, without one, by `sliding`."""
    full, slides = LAYER_KINDS
    kinds = read.by_layer("layer_types", {full: False, slides: True}, len(sliding))
    if kinds is not None and window is None and any(kinds):
        raise unsupported(
            "layer_types", slides, f"{full} alone, where sliding_window says nothing or use_sliding_window is off"
        )
    return tuple(window if within else None for within in kinds or sliding)


def switched_window(read: ConfigReader, absent: int | None) -> int | None:
    """`sliding_window` where `use_sliding_window` turns it on; `absent`: its size if there is no such key."""
    window = read.optional("sliding_window", absent)
    return window if read.flag("use_sliding_window") else None


def upper_windows(read: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """The window that a config switches on, in the layers from `max_window_layers` on or as `layer_types` say."""
    window, first = switched_window(read, 4096), read.integer("max_window_layers", 28, least=0)
    return read_windows(read, window, tuple(window is not None and layer >= first for layer in range(layers)))


def one_window(read: ConfigReader, layers: int, absent: int | None) -> tuple[int | None, ...]:
    """`sliding_window` (`absent`: where there is no such key) on all layers; a list of layer kinds may not differ."""
    window = read.optional("sliding_window", absent)
    kind = LAYER_KINDS[window is not None]
    read.by_layer("layer_types", {kind: True}, layers)
    return (window,) * layers


def build_standard(
    config: StandardConfig,
    source: ModelSource,
    length: int | None = None,
    tensors: Mapping[str, TensorSource] | None = None,
) -> Module:
    """The Module, of the source's tensors or of `tensors`, a view of them; `length` as in Arch.build."""
    builder = Builder(source.tensors if tensors is None else tensors)
    _check_sizes(builder, config)
    shape, mlp = config.attention, config.mlp
    if "attention" in config.open_biases:
        shape = replace(shape, biased=tuple(p for p in PROJECTIONS if _biased(builder, f"self_attn.{p}_proj")))
    if "mlp" in config.open_biases:
        mlp = replace(mlp, biased=_biased(builder, "mlp.gate_proj"))
    shape = replace(shape, pairs_adjacent=config.gguf_pairs and source.layout == "gguf")
    windows = config.windows or (None,) * config.frame.layers

    builder.input(IDS)
    parameters = with_divisors(config.rope, source.tensors)
    rotation = rotation_of(parameters, length, source.tensors.get(ROPE_DIVISORS))
    rope = windowed = rope_table(builder, builder.input(POSITIONS), rotation)
    if config.window_rope is not None:
        windowed = rope_table(builder, POSITIONS, rotation_of(config.window_rope, length), "window_rope")
    kind = ATTENTION.get("full")()

    def attention(x: str, layer: str, number: int) -> str:
        turned = None if number in config.unturned else rope if windows[number] is None else windowed
        return kind.add(builder, x, turned, f"{layer}.self_attn", replace(shape, window=windows[number]))

    add_decoder(builder, config.frame, attention, lambda x, layer, _: gated_mlp(builder, x, f"{layer}.mlp", mlp))
    return builder.finish(vocab=config.frame.vocab, context=config.context, ignored=IGNORED)


def unfused(config: StandardConfig, tensors: Tensors) -> dict[str, TensorSource]:
    """The tensors with FUSED_ATTENTION, q, k and v one after another, and FUSED_MLP, gate and up, in their parts."""
    shape, inner = config.attention, config.mlp.inner
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows = {"q": range(q), "k": range(q, q + kv), "v": range(q + kv, q + 2 * kv)}
    tensors = split(tensors, FUSED_ATTENTION, {f"self_attn.{part}_proj": rows[part] for part in rows})
    return split(tensors, FUSED_MLP, {"mlp.gate_proj": range(inner), "mlp.up_proj": range(inner, 2 * inner)})


def _biased(builder: Builder, layer: str) -> bool:
    return builder.has(f"model.layers.0.{layer}.bias")


def _check_sizes(builder: Builder, config: StandardConfig) -> None:
    """Holds the config against tensors: tables as large as it claims may only be made once the file is as large."""
    shape = config.attention
    builder.check(EMBEDDING, (config.frame.vocab, config.frame.hidden))
    for part, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        builder.check(f"model.layers.0.self_attn.{part}_proj.weight", (heads * shape.head_dim, shape.hidden))


def _read_attention(read: ConfigReader, head_dim: int | None) -> AttentionShape:
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    kv_heads = read.integer("num_key_value_heads", heads)
    width = read.integer("head_dim", head_dim or (hidden // heads if hidden % heads == 0 else None))
    if heads % kv_heads:
        raise unsupported("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads={heads}")
    if width % 2:
        raise unsupported("head_dim", width, "an even number, because rotary embedding turns pairs")
    return AttentionShape(hidden, heads, kv_heads, width, scale=1 / math.sqrt(width))
