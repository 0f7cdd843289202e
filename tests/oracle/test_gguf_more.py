"""Tiny models of further families as GGUF files in llama.cpp's layout, against transformers with the same numbers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from registry_entries import entries
from tests.oracle.driver import Driver
from tests.oracle.tiny import oracle_logits, prompt, worst
from tests.oracle.tiny_more import FULL, GLOBAL, LOCAL, MORE, OTHERS, SLIDING
from transformers import PretrainedConfig, PreTrainedModel

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module, config_notes

Metadata = Callable[[gguf.GGUFWriter], None]
Parts = Iterator[tuple[str, torch.Tensor]]

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    **LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GLM = {
    **LAYER,
    "mlp.gate_up_proj": "ffn_up",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
BLOOM = {
    "input_layernorm": "attn_norm",
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.ln_f": "output_norm",
}


def gguf_name(name: str, parts: dict[str, str]) -> str:
    layer, _, suffix = name.rpartition(".")
    if layer in TOP:
        return f"{TOP[layer]}.{suffix}"
    number, _, part = layer.removeprefix("model.layers.").removeprefix("transformer.h.").partition(".")
    return f"blk.{number}.{parts[part]}.{suffix}"


def one_after_another(fused: torch.Tensor, heads: int) -> torch.Tensor:
    """All rows of q, then of k, then of v, from q, k and v of each head in turn."""
    return fused.reshape(heads, 3, -1, *fused.shape[1:]).transpose(0, 1).reshape(fused.shape)


def write(path: Path, arch: str, config: PretrainedConfig, tensors: Parts, form: str, extra: Metadata | None) -> None:
    """A file with these tensors, matrices in `form`."""
    writer = gguf.GGUFWriter(path, arch)
    inner = getattr(config, "intermediate_size", 4 * config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", config.num_attention_heads))
    if extra is not None:
        extra(writer)
    kind = gguf.GGMLQuantizationType[form]
    for name, weight in tensors:
        if weight.ndim == 1:
            writer.add_tensor(name, weight.numpy().copy())
        else:
            writer.add_tensor(name, gguf.quants.quantize(weight.contiguous().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_form(model: PreTrainedModel, form: str) -> Parts:
    """Names and weights, which become what `form` keeps of them. A tied head is left out."""
    kind = gguf.GGMLQuantizationType[form]
    for name, weight in model.state_dict().items():
        if weight.ndim == 2:
            raw = gguf.quants.quantize(weight.numpy(), kind)
            weight.copy_(torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind))))
        if not (name == "lm_head.weight" and model.config.tie_word_embeddings):
            yield name, weight


def gemma(model: PreTrainedModel, path: Path, form: str, extra: Metadata | None = None) -> None:
    """Gains are stored with the one that is added to them."""
    config = model.config
    ropes = config.rope_parameters
    turn = ropes.get(FULL, ropes)

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if SLIDING in config.layer_types:
            writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base(turn["rope_theta"])
        if turn["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(turn["factor"])
        if config.attn_logit_softcapping:
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        if extra is not None:
            extra(writer)

    weights = in_form(model, form)
    tensors = ((gguf_name(name, GEMMA), w + 1 if "norm" in name else w) for name, w in weights)
    write(path, config.model_type.removesuffix("_text"), config, tensors, form, metadata)


def glm(model: PreTrainedModel, path: Path, form: str, *, fused: bool = False, arch: str = "glm4") -> None:
    """`fused`: q, k and v as one matrix, as in the oldest models' files."""
    config = model.config

    def metadata(writer: gguf.GGUFWriter) -> None:
        if arch == "glm4":
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))

    def tensors() -> Parts:
        waiting: dict[str, list[torch.Tensor]] = {}
        for name, weight in in_form(model, form):
            layer, _, suffix = name.rpartition(".self_attn.")
            parts = waiting.setdefault(f"blk.{layer.removeprefix('model.layers.')}.attn_qkv{suffix[6:]}", [])
            if not fused or suffix[1:6] != "_proj" or suffix[0] == "o":
                yield (
                    gguf_name(name, GLM if arch == "glm4" else {**GLM, "post_attention_layernorm": "ffn_norm"}),
                    weight,
                )
            else:
                parts.append(weight)
        yield from ((name, torch.cat(parts)) for name, parts in waiting.items() if parts)

    write(path, arch, config, tensors(), form, metadata)


def bloom(model: PreTrainedModel, path: Path, form: str) -> None:
    config = model.config

    def tensors() -> Parts:
        for name, weight in in_form(model, form):
            fused = "query_key_value" in name
            yield gguf_name(name, BLOOM), one_after_another(weight, config.num_attention_heads) if fused else weight

    write(path, "bloom", config, tensors(), form, lambda w: w.add_layer_norm_eps(config.layer_norm_epsilon))


def check(model: PreTrainedModel, path: Path, backend: str = "reference") -> None:
    checkpoint, tokens = open_checkpoint(path), prompt(120)
    assert config_notes(checkpoint.config) == ()
    got = Driver(backend, build_module(checkpoint)).logits({"a": tokens})["a"]
    assert worst(got, oracle_logits(model, tokens)) < 1e-4


FORMS = ["F32", "BF16", "Q8_0"]
ROPES = {SLIDING: {**LOCAL, "rope_theta": 10000.0}, FULL: {**GLOBAL, "rope_theta": 300.0}}
# What a file does not say, and what then is meant: scores scaled by the head's width, five local layers of six.
GEMMA2_CHANGES: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32}
GEMMA3_CHANGES: dict[str, Any] = {
    **GEMMA2_CHANGES,
    "num_hidden_layers": 7,
    "layer_types": None,
    "rope_parameters": ROPES,
    "final_logit_softcapping": None,
}


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("form", FORMS)
def test_gemma_2(tmp_path: Path, form: str, backend: str) -> None:
    model = MORE["gemma2"].made(**GEMMA2_CHANGES)
    gemma(model, tmp_path / "m.gguf", form)
    check(model, tmp_path / "m.gguf", backend)


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("form", FORMS)
def test_gemma_3(tmp_path: Path, form: str, backend: str) -> None:
    model = MORE["gemma3"].made(**GEMMA3_CHANGES)
    gemma(model, tmp_path / "m.gguf", form)
    check(model, tmp_path / "m.gguf", backend)


def _pattern(value: Any) -> Metadata:
    return lambda writer: writer.add_sliding_window_pattern(value)


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"final_logit_softcapping": 5.0}, None),
        ({"layer_types": [SLIDING, FULL] * 3 + [SLIDING]}, _pattern(2)),
        ({"layer_types": [FULL, SLIDING, SLIDING] * 2 + [FULL]}, _pattern([False, True, True] * 2 + [False])),
        ({"layer_types": [SLIDING] * 7}, _pattern([True] * 7)),
        ({"rope_parameters": {**ROPES, SLIDING: LOCAL}}, lambda writer: writer.add_rope_freq_base_swa(500.0)),
    ],
)
def test_newer_keys_of_gemma_3(tmp_path: Path, changes: dict[str, Any], extra: Metadata | None) -> None:
    model = MORE["gemma3"].made(**{**GEMMA3_CHANGES, **changes})
    gemma(model, tmp_path / "m.gguf", "F32", extra)
    check(model, tmp_path / "m.gguf")


def test_gemma_3_without_windows(tmp_path: Path) -> None:
    """A file without the key has none, and the base of its only kind of layer."""
    model = MORE["gemma3"].made(**{**GEMMA3_CHANGES, "layer_types": [FULL] * 7})
    gemma(model, tmp_path / "m.gguf", "F32")
    assert "sliding_window" not in open_checkpoint(tmp_path / "m.gguf").config
    check(model, tmp_path / "m.gguf")


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_by_hidden_over_heads(tmp_path: Path, family: str, layers: int) -> None:
    changes = GEMMA2_CHANGES if family == "gemma2" else GEMMA3_CHANGES
    model = MORE[family].made(**{**changes, "num_hidden_layers": layers, "query_pre_attn_scalar": 16})
    gemma(model, tmp_path / "m.gguf", "F32")
    scales = {
        op.attrs["scale"]
        for op in build_module(open_checkpoint(tmp_path / "m.gguf")).entries["target"].ops
        if op.kind == "attend"
    }
    assert scales == {model.config.query_pre_attn_scalar**-0.5}


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("form", FORMS)
def test_glm_4(tmp_path: Path, form: str, backend: str) -> None:
    model = MORE["glm4"].made(head_dim=32)
    glm(model, tmp_path / "m.gguf", form)
    check(model, tmp_path / "m.gguf", backend)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_fused_and_whole_heads(tmp_path: Path, share: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": share}
    model = MORE["glm4"].made(rope_parameters=rope)
    glm(model, tmp_path / "m.gguf", "F32", fused=True)
    assert open_checkpoint(tmp_path / "m.gguf").config.get("partial_rotary_factor", 1.0) == share
    check(model, tmp_path / "m.gguf")


@pytest.mark.parametrize("fused", [False, True])
def test_older_glm(tmp_path: Path, fused: bool) -> None:
    model = OTHERS["glm"].made(head_dim=16)
    glm(model, tmp_path / "m.gguf", "F32", fused=fused, arch="chatglm")
    check(model, tmp_path / "m.gguf")


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("form", FORMS)
def test_bloom(tmp_path: Path, form: str, backend: str) -> None:
    model = MORE["bloom"].made("six heads", hidden_size=96)
    bloom(model, tmp_path / "m.gguf", form)
    check(model, tmp_path / "m.gguf", backend)
