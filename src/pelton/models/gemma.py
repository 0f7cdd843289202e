"""What the Gemma families share: embeddings scaled by sqrt(hidden), gains stored less one, norms around each block.

Of their generations it knows nothing: which layers have a window and what is capped they say themselves.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from pelton.layers.mlp import ACTIVATIONS
from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader, unsupported
from pelton.models.decoder import Norms
from pelton.models.spelling import renamed_parts
from pelton.models.standard import StandardConfig, build_standard, read_biases, read_windows
from pelton.models.tensors import Tensors
from pelton.program.module import Module

ACTIVATION = "gelu_pytorch_tanh"
MLP_NORM = "pre_feedforward_layernorm"
NORMS = Norms("input_layernorm", "post_attention_layernorm", MLP_NORM, "post_feedforward_layernorm")
GGUF_PARTS = {
    "post_attention_layernorm": MLP_NORM,  # as translated for families without the other norms
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PATTERN = "sliding_window_pattern"


def read_gemma(read: ConfigReader, raw: Mapping[str, object], config: StandardConfig) -> StandardConfig:
    """`config` with the keys of all generations."""
    config = read_biases(read, config, "attention")
    activation = read.choice("hidden_activation", ACTIVATIONS, ACTIVATION)
    if raw.get("hidden_act") is not None and config.mlp.activation != activation:
        raise unsupported("hidden_act", raw["hidden_act"], "the same as hidden_activation")
    if read.flag("use_bidirectional_attention"):
        raise unsupported("use_bidirectional_attention", True, "false")
    read.unused("cache_implementation")
    scale = 1 / math.sqrt(read.number("query_pre_attn_scalar", 256))
    return replace(
        config,
        frame=replace(config.frame, norms=NORMS, embed_scale=math.sqrt(config.frame.hidden)),
        attention=replace(config.attention, scale=scale),
        mlp=replace(config.mlp, activation=activation),
    )


def read_cap(read: ConfigReader, raw: Mapping[str, object], field: str, absent: float | None) -> float:
    """A soft cap; 0, which is none, where the config says null, and `absent` where it says nothing."""
    if raw.get(field, absent) is None:
        read.unused(field)
        return 0.0
    return read.number(field, absent)


def read_pattern(read: ConfigReader, raw: Mapping[str, object], window: int, period: int) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types`, by a pattern, or else none in each `period`-th layer.

    `window` is its size where the config does not say. A pattern is a period or, in GGUF, true for each layer with a
    window (one truth where all are alike).
    """
    layers, size = read.integer("num_hidden_layers"), read.optional("sliding_window", window)
    pattern = raw.get(PATTERN) if raw.get("layer_types") is None else None
    read.unused(PATTERN)
    if isinstance(pattern, list):
        sliding = read.by_layer(PATTERN, {"True": True, "False": False}, layers) or ()
    elif isinstance(pattern, bool):
        sliding = (pattern,) * layers
    else:
        period = period if pattern is None else read.integer(PATTERN)
        sliding = tuple((layer + 1) % period != 0 for layer in range(layers))
    windows = read_windows(read, size, sliding)
    if size is None and raw.get("layer_types") is None and any(sliding):
        raise unsupported("sliding_window", None, "a whole number, because layers have a window")
    return windows


def build_gemma(
    config: StandardConfig, source: ModelSource, length: int | None, tensors: Tensors, largest: int
) -> Module:
    """The Module of `tensors`, a view of the source's.

    GGUF files have whole gains, and do not say how scores are scaled: by the width of a head or, in the model of
    `largest` layers, by hidden / heads.
    """
    frame, shape = config.frame, config.attention
    norm = replace(frame.norm, plus=1.0)
    if source.layout == "gguf":
        tensors, norm = renamed_parts(tensors, GGUF_PARTS), frame.norm
        width = shape.hidden // shape.heads if frame.layers == largest else shape.head_dim
        shape = replace(shape, scale=1 / math.sqrt(width))
    shape = replace(shape, head_norm=shape.head_norm and norm)
    return build_standard(replace(config, frame=replace(frame, norm=norm), attention=shape), source, length, tensors)
