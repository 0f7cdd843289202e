"""More configs of well-known checkpoints; see published."""

from typing import Any

from tests.models.published import Config, Published

SLIDING, FULL = "sliding_attention", "full_attention"


def gemma2(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any) -> Config:
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "torch_dtype": "float32",
        "transformers_version": "4.42.0.dev0",
        "use_cache": True,
        "vocab_size": 256000,
        **more,
    }


def gemma3(hidden: int, inner: int, layers: int, **more: Any) -> Config:
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "max_position_embeddings": 32768,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 262144,
        **more,
    }


def with_images(hidden: int, inner: int, layers: int, **more: Any) -> Config:
    """The first releases leave to transformers' defaults what is the same for all sizes."""
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "model_type": "gemma3_text",
            "num_hidden_layers": layers,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            **more,
        },
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }


def glm(architecture: str, context: int, eps: float, biased: bool, **more: Any) -> Config:
    return {
        "architectures": [architecture],
        "attention_bias": biased,
        "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338],
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 13696,
        "max_position_embeddings": context,
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "pad_token_id": 151329,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": eps,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 151552,
        **more,
    }


def bloom(**more: Any) -> Config:
    return {
        "apply_residual_connection_post_layernorm": False,
        "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_dropout": 0.0,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "masked_softmax_fusion": True,
        "model_type": "bloom",
        "n_inner": None,
        "offset_alibi": 100,
        "pad_token_id": 3,
        "pretraining_tp": 1,
        "skip_bias_add": True,
        "skip_bias_add_qkv": False,
        "transformers_version": "4.20.0",
        "unk_token_id": 0,
        "use_cache": True,
        "vocab_size": 250880,
        **more,
    }


FIVE_OF_SIX = [FULL if (layer + 1) % 6 == 0 else SLIDING for layer in range(18)]
# Of those with images, the parameters of the language model.
IMAGES: dict[str, Published] = {
    "gemma 3 4b": Published(with_images(2560, 10240, 34), 3.880e9, {1024: 29, None: 5}),
    "gemma 3 12b": Published(
        with_images(3840, 15360, 48, num_attention_heads=16, num_key_value_heads=8), 11.766e9, {1024: 40, None: 8}
    ),
    "gemma 3 27b": Published(
        with_images(
            5376,
            21504,
            62,
            head_dim=128,
            num_attention_heads=32,
            num_key_value_heads=16,
            query_pre_attn_scalar=168,
        ),
        27.009e9,
        {1024: 52, None: 10},
    ),
}
MORE: dict[str, Published] = {
    "gemma 2 2b": Published(gemma2(2304, 9216, 26, 8, 4), 2.614e9, {4096: 13, None: 13}),
    "gemma 2 9b": Published(gemma2(3584, 14336, 42, 16, 8, sliding_window_size=4096), 9.242e9, {4096: 21, None: 21}),
    "gemma 2 27b": Published(
        gemma2(4608, 36864, 46, 32, 16, head_dim=128, query_pre_attn_scalar=144), 27.227e9, {4096: 23, None: 23}
    ),
    "gemma 3 270m": Published(
        gemma3(640, 2048, 18, _sliding_window_pattern=6, layer_types=FIVE_OF_SIX, use_bidirectional_attention=False),
        0.2681e9,
        {512: 15, None: 3},
    ),
    "gemma 3 1b": Published(
        gemma3(1152, 6912, 26, cache_implementation="hybrid", sliding_window_pattern=6), 0.9999e9, {512: 22, None: 4}
    ),
    "glm 4 9b 0414": Published(glm("Glm4ForCausalLM", 32768, 1e-5, biased=True), 9.400e9, {None: 40}),
    "glm 4 32b 0414": Published(
        glm(
            "Glm4ForCausalLM",
            32768,
            1e-5,
            biased=False,
            hidden_size=6144,
            intermediate_size=23040,
            num_attention_heads=48,
            num_hidden_layers=61,
        ),
        32.57e9,
        {None: 61},
    ),
    "glm 4 9b chat": Published(glm("GlmForCausalLM", 131072, 1.5625e-7, biased=True), 9.400e9, {None: 40}),
    "bloom 560m": Published(bloom(hidden_size=1024, n_layer=24, n_head=16, seq_length=2048), 0.5592e9, {None: 24}),
    "bloom 7b1": Published(
        bloom(n_embed=4096, n_layer=30, num_attention_heads=32, n_head=32, pretraining_tp=4), 7.069e9, {None: 30}
    ),
}
