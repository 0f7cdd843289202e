"""Models of families that are not here: the error says what they have that is not supported, if their config does."""

from typing import Any

import pytest
import transformers

from pelton.core.errors import UnsupportedModelError
from pelton.models import ARCHS, arch_for
from pelton.models.unknown_family import reasons

TOLD = {
    "Qwen3MoeConfig": "experts (num_",
    "MixtralConfig": "experts (num_local_experts=8)",
    "DeepseekV3Config": "experts (n_routed_experts=256)",
    "MambaConfig": "recurrent layers (state_size=16)",
    "RecurrentGemmaConfig": "recurrent layers (",
    "Qwen3NextConfig": "recurrent layers (linear_conv_kernel_dim=4) and experts (num_experts=512)",
    "Qwen2VLConfig": "a part for pictures (vision_config)",
    "Llama4Config": "experts (text_config.num_local_experts=16)",
    "Qwen2AudioConfig": "a part for sound (audio_config)",
    "T5Config": "an encoder (is_encoder_decoder=True)",
    "GPT2Config": "",
    "Cohere2Config": "",
}


@pytest.mark.parametrize("name", TOLD)
def test_the_reason_is_told_where_the_config_does(name: str) -> None:
    config = {**getattr(transformers, name)().to_dict(), "architectures": ["SomeForCausalLM"]}
    with pytest.raises(UnsupportedModelError) as refusal:
        arch_for(config)
    start, _, told = refusal.value.cause.partition(", which is not supported")
    assert start == "The model is of the family 'SomeForCausalLM'"
    assert (TOLD[name] in told and told.startswith(": it has ")) if TOLD[name] else told == "."
    assert (
        refusal.value.remedy
        == f"Families that are: {', '.join(ARCHS.names())}; docs/families.md says which models " + ("they have.")
    )


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"qwen3moe.expert_count": 128}, "experts (expert_count=128)"),
    ({"mamba.ssm.state_size": 16}, "recurrent layers (ssm.state_size=16)"),
    ({"layer_types": ["full_attention", "linear_attention"]}, "recurrent layers (layer_types: linear_attention)"),
    ({"num_experts": 0, "vision_config": None, "layer_types": ["full_attention"]}, ""),
    ({"num_experts": 10**5000}, "experts (num_experts)"),
    ({"num_experts": "x" * 5000, "layer_types": [[1], {}, None]}, "experts (num_experts)"),
]


@pytest.mark.parametrize(("config", "told"), CONFIGS)
def test_gguf_names_and_odd_values(config: dict[str, Any], told: str) -> None:
    assert reasons(config) == told
