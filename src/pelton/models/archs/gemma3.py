"""Gemma 3 (arXiv 2503.19786): five of six layers have a window and a rotary base of their own; q and k are normed."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader, unsupported
from pelton.models.gemma import build_gemma, read_cap, read_gemma, read_pattern
from pelton.models.standard import StandardConfig, read_standard
from pelton.models.tensors import renamed
from pelton.program.module import Module

LARGEST = 62  # layers of the model whose scores are scaled by hidden / heads
GLOBAL, LOCAL = "full_attention", "sliding_attention"
WINDOW = "sliding_window"
# What configs of models with images leave out of the language model's part.
DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
IMAGE_KEYS = "text_config vision_config mm_tokens_per_image image_token_index boi_token_index eoi_token_index".split()
IMAGE_TENSORS = ("vision_tower.", "multi_modal_projector.")
NO_IMAGES = "Of this model only the part for text is used: images are not supported yet."


class Gemma3:
    """270M to 27B; of a model with images the language model."""

    names: tuple[str, ...] = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "gemma3_text", "gemma3")

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        text = raw.get("text_config")
        if text is not None:
            if not isinstance(text, Mapping):
                raise unsupported("text_config", text, "a table")
            raw = {**DEFAULTS, **{key: raw[key] for key in raw if key not in IMAGE_KEYS}, **text}
        read = ConfigReader(raw)
        config = read_standard(read, eps=1e-6, context=131072, theta=1e6, tied=True, head_dim=256, layer_type=GLOBAL)
        config = read_gemma(read, raw, config)
        context = read.integer("max_position_embeddings", 131072)  # that of scaled positions
        local = read.rope(config.attention.head_dim, context, 1e4, LOCAL, "rope_local_base_freq", scaled=False)
        windows = read_pattern(read, raw, window=4096, period=6)
        cap = read_cap(read, raw, "final_logit_softcapping", None)
        read.unused("_sliding_window_pattern")  # what layer_types were made by
        return replace(
            config,
            attention=replace(config.attention, head_norm=config.frame.norm),
            frame=replace(config.frame, softcap=cap),
            context=context,
            windows=windows,
            window_rope=local,
            unsaid=frozenset({WINDOW} - set(raw)),
            notes=read.notes() if text is None else (NO_IMAGES, *read.notes()),
        )

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        if source.layout == "gguf" and WINDOW in config.unsaid:
            config = replace(config, windows=())  # no layer has one
        tensors = renamed(source.tensors, _text_name)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(IMAGE_TENSORS)}
        return build_gemma(config, source, length, tensors, LARGEST)


def _text_name(name: str) -> str:
    """The language model's tensors as in files without images; all others below one of IMAGE_TENSORS."""
    for prefix in ("model.language_model.", "language_model.model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    inner = name.removeprefix("language_model.").removeprefix("model.")
    return inner if name.startswith("language_model.") or inner.startswith(IMAGE_TENSORS) else name
