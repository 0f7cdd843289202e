"""Tiny models written as GGUF files the way llama.cpp's converter does, against transformers with the same numbers."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import LLAMA_VARIANTS, TOYS, oracle_logits, prompt, tiny_llama, worst
from transformers import PretrainedConfig, PreTrainedModel

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import UnsupportedModelError
from pelton.models import build_module, config_notes

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
ARCHITECTURES = {"mistral": "llama"}  # of files, where they are not the models' own
PAIRED = ("llama", "smollm3")
Metadata = Callable[[gguf.GGUFWriter], None]


def gguf_name(name: str, arch: str) -> str:
    layer, suffix = name.removeprefix("model.layers.").rsplit(".", 1)
    if layer == name.rsplit(".", 1)[0]:
        return f"{PARTS[layer]}.{suffix}"
    number, part = layer.split(".", 1)
    if arch == "olmo2" and part == "post_attention_layernorm":
        return f"blk.{number}.post_attention_norm.{suffix}"
    return f"blk.{number}.{PARTS[part]}.{suffix}"


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head's two halves as adjacent pairs of rows."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def write_config(writer: gguf.GGUFWriter, config: PretrainedConfig, arch: str) -> None:
    """The keys that the converter writes for a family."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    width = head_dim or config.hidden_size // config.num_attention_heads
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in PAIRED:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(width)
    if arch == "phi3":
        writer.add_rope_dimension_count(int(width * config.rope_parameters["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_sliding_window(config.sliding_window or 0)
        write_divisors(writer, config)


def write_divisors(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """The two lists of divisors, and the factor for which no scaling is named."""
    rope, original = config.rope_parameters, config.original_max_position_embeddings
    if "long_factor" in rope:
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def write(model: PreTrainedModel, path: Path, form: str, extra: Metadata | None = None) -> None:
    """The model's file with matrices in `form`; the model's own weights become what the file holds."""
    config = model.config
    arch = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    write_config(writer, config, arch)
    if extra is not None:
        extra(writer)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if arch in PAIRED else {}
    tied = ("lm_head.weight",) if config.tie_word_embeddings else ()
    kind = gguf.GGMLQuantizationType[form]
    for name, weight in model.state_dict().items():
        if name in tied:
            continue
        part = name.split(".")[-2]
        if weight.ndim == 2:
            raw = gguf.quants.quantize(weight.numpy(), kind)
            weight.copy_(torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind))))
        stored = paired(weight, heads[part]) if part in heads else weight
        target = gguf_name(name, arch)
        if weight.ndim == 1:
            writer.add_tensor(target, stored.numpy().copy())
        else:
            writer.add_tensor(target, gguf.quants.quantize(stored.contiguous().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(model: PreTrainedModel, path: Path, backend: str, lengths: Sequence[int] = (70,)) -> None:
    """Our logits of the file against the model's; texts of each length with the positions made for it."""
    checkpoint = open_checkpoint(path)
    assert config_notes(checkpoint.config) == ()
    for length in lengths:
        tokens, module = prompt(length), build_module(checkpoint, length)
        assert module.context == model.config.max_position_embeddings
        assert worst(Driver(backend, module).logits({"a": tokens})["a"], oracle_logits(model, tokens)) < 1e-4, length


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize(
    ("variant", "form"),
    [
        ("grouped", "F32"),
        ("grouped", "F16"),
        ("grouped", "BF16"),
        ("multi_head", "Q8_0"),
        ("multi_query", "Q4_0"),
        ("tied", "Q4_1"),
        ("attention_bias", "F32"),
        ("mlp_bias", "F32"),
    ],
)
def test_gguf_is_the_oracle(tmp_path: Path, variant: str, form: str, backend: str) -> None:
    model = tiny_llama(**LLAMA_VARIANTS[variant])
    write(model, tmp_path / "m.gguf", form)
    compare(model, tmp_path / "m.gguf", backend)


# Windows of families whose converter does not write them are left out.
OTHERS: list[tuple[str, str | None, str]] = [
    ("mistral", "no window", "Q8_0"),
    ("qwen2", "no windows", "F32"),
    ("qwen2", "tied, no windows", "Q4_0"),
    ("qwen3", "no windows", "F32"),
    ("qwen3", "biased, no windows", "F16"),
    ("phi3", None, "F32"),
    ("phi3", "tied, part of a head turned", "Q8_0"),
    ("phi3", "long texts", "F32"),
    ("olmo2", None, "Q8_0"),
    ("olmo2", "biased", "F32"),
    ("smollm3", "no windows", "F32"),
]


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize(("family", "variant", "form"), OTHERS)
def test_gguf_of_other_families(tmp_path: Path, family: str, variant: str | None, form: str, backend: str) -> None:
    model = TOYS[family].made(variant)
    write(model, tmp_path / "m.gguf", form)
    compare(model, tmp_path / "m.gguf", backend, (33, 150))


def _llama3_divisors(writer: gguf.GGUFWriter) -> None:
    """Scaled frequencies are written as what divides the plain ones."""
    rope = tiny_llama(**LLAMA_VARIANTS["llama3"]).model.rotary_emb.inv_freq
    plain = tiny_llama().model.rotary_emb.inv_freq
    writer.add_tensor("rope_freqs.weight", (plain / rope).numpy())


def _linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


@pytest.mark.parametrize(("variant", "extra"), [("llama3", _llama3_divisors), ("linear", _linear)])
def test_scaled_frequencies(tmp_path: Path, variant: str, extra: Metadata) -> None:
    model, tokens = tiny_llama(**LLAMA_VARIANTS[variant]), prompt(200)
    write(model, tmp_path / "m.gguf", "F32", extra)
    got = Driver("reference", build_module(open_checkpoint(tmp_path / "m.gguf"))).logits({"a": tokens})["a"]
    theirs = oracle_logits(model, tokens)
    assert worst(got, theirs) < 1e-4
    assert worst(oracle_logits(tiny_llama(), tokens), theirs) > 0.01


def _experts(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_count(8)


def _unnamed_factor(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_attn_factors(1.25)


def _windows(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(16)


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        (_experts, "num_local_experts=8"),
        (_unnamed_factor, "rope_scaling.attn_factor=1.25"),
        (_windows, "sliding_window=16"),
    ],
)
def test_other_mathematics_is_refused_by_name(tmp_path: Path, extra: Metadata, field: str) -> None:
    write(tiny_llama(), tmp_path / "m.gguf", "F32", extra)
    with pytest.raises(UnsupportedModelError) as refusal:
        build_module(open_checkpoint(tmp_path / "m.gguf"))
    assert field in refusal.value.cause
