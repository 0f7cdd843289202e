"""Tiny Llamas written as GGUF files the way llama.cpp's converter does, against transformers with the same numbers."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import LLAMA_VARIANTS, oracle_logits, prompt, tiny_llama, worst
from transformers import LlamaForCausalLM

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import UnsupportedModelError
from pelton.models import build_module, config_notes

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
Metadata = Callable[[gguf.GGUFWriter], None]


def gguf_name(name: str) -> str:
    layer, suffix = name.removeprefix("model.layers.").rsplit(".", 1)
    if layer == name.rsplit(".", 1)[0]:
        return f"{PARTS[layer]}.{suffix}"
    number, part = layer.split(".", 1)
    return f"blk.{number}.{PARTS[part]}.{suffix}"


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head's two halves as adjacent pairs of rows."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def write(model: LlamaForCausalLM, path: Path, form: str, extra: Metadata | None = None) -> None:
    """The model's file with matrices in `form`; the model's own weights become what the file holds."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if extra is not None:
        extra(writer)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
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
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), stored.numpy().copy())
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored.contiguous().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    model, tokens = tiny_llama(**LLAMA_VARIANTS[variant]), prompt(70)
    write(model, tmp_path / "m.gguf", form)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert config_notes(checkpoint.config) == ()
    got = Driver(backend, build_module(checkpoint)).logits({"a": tokens})["a"]
    assert worst(got, oracle_logits(model, tokens)) < 1e-4


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


def _yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)


@pytest.mark.parametrize(
    ("extra", "field"),
    [(_experts, "num_local_experts=8"), (_yarn, "rope_scaling.rope_type='yarn'")],
)
def test_other_mathematics_is_refused_by_name(tmp_path: Path, extra: Metadata, field: str) -> None:
    write(tiny_llama(), tmp_path / "m.gguf", "F32", extra)
    with pytest.raises(UnsupportedModelError) as refusal:
        build_module(open_checkpoint(tmp_path / "m.gguf"))
    assert field in refusal.value.cause
