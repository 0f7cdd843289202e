"""A tiny random checkpoint of any family `transformers` has, from one entry: the class's name and a config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

# Models this small lose more by waiting for a second thread than it gives.
torch.set_num_threads(1)

VOCAB = 160
# Small, and such that each number matters: an epsilon that shows, heads that share keys, two layers.
LIKE_ALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 0.02,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Toy:
    """`model`: transformers' class; `config`: its arguments. Choose them so that each field matters to the logits.

    `variants`: further configs, as what they change in `config`. `idle`: fields that files of the family have and that
    change no logits, because others say the same.
    """

    model: str
    config: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    def config_of(self, variant: str | None = None) -> dict[str, Any]:
        """The arguments of the main config (None) or of a variant."""
        return {**self.config, **(self.variants[variant] if variant else {})}

    @property
    def family(self) -> type[PreTrainedModel]:
        found: type[PreTrainedModel] = getattr(transformers, self.model)
        return found

    def made(self, variant: str | None = None, seed: int = 0, **changes: Any) -> PreTrainedModel:
        """A random model in fp32, with some fields of the config changed."""
        kind = self.family
        model: PreTrainedModel = kind(kind.config_class(**{**self.config_of(variant), **changes})).eval()
        randomise(model, seed)
        return model


def like_all(**changes: Any) -> dict[str, Any]:
    """LIKE_ALL with these fields added or changed."""
    return {**LIKE_ALL, **changes}


def randomise(model: PreTrainedModel, seed: int = 0) -> None:
    """Draws all weights: gains around 1, visible biases, projections that keep the scale, strong queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if name.endswith("bias"):
                weight.copy_(0.5 * drawn)
            elif weight.ndim == 1:
                weight.copy_(1 + 0.3 * drawn)
            elif "embed" in name:
                weight.copy_(0.4 * drawn)
            else:
                strong = any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "query_key_value", "lm_head"))
                weight.copy_((1.5 if strong else 1.0) * drawn / weight.shape[1] ** 0.5)
