"""SmolLM3: Llama's decoder in which some layers have no rotary positions (NoPE, arXiv 2501.18795)."""

from collections.abc import Mapping
from dataclasses import replace

from pelton.models.arch import ModelSource
from pelton.models.config import ConfigReader
from pelton.models.standard import (
    StandardConfig,
    build_standard,
    read_biases,
    read_standard,
    read_windows,
    switched_window,
)
from pelton.program.module import Module

TURNED = {"0": False, "1": True}  # entries of `no_rope_layers`, which lists the layers that do have rotary positions


class SmolLM3:
    """Without `no_rope_layers`, each `no_rope_layer_interval`-th layer is one; these may have the window."""

    names: tuple[str, ...] = ("SmolLM3ForCausalLM", "smollm3", "Smollm3ForCausalLM")  # the last: of a GGUF

    def config(self, raw: Mapping[str, object]) -> StandardConfig:
        read = ConfigReader(raw)
        read.unused("max_window_layers", "pretraining_tp")
        config = read_standard(read, eps=1e-6, context=32768, theta=2e6, tied=True)
        config = read_biases(read, config, "attention", "mlp")
        layers, interval = config.frame.layers, read.integer("no_rope_layer_interval", 4)
        turned = read.by_layer("no_rope_layers", TURNED, layers)
        if turned is None:
            turned = tuple((layer + 1) % interval != 0 for layer in range(layers))
        window = switched_window(read, None)
        windows = read_windows(read, window, tuple(window is not None and not turns for turns in turned))
        unturned = frozenset(layer for layer in range(layers) if not turned[layer])
        return replace(config, windows=windows, unturned=unturned, gguf_pairs=True, notes=read.notes())

    def build(self, config: StandardConfig, source: ModelSource, length: int | None = None) -> Module:
        return build_standard(config, source, length)
