"""A GGUF's metadata and tensor names in the Hugging Face spelling, so that models/ reads one kind of config.

Reads no weights. What has no translation keeps its GGUF name. The bytes stay as they are: the rows of q and k may be
ordered for interleaved rotary pairs, which models/ undoes.
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.checkpoint.gguf import GgufFile, GgufMetadata
from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
TOP = re.compile(r"(\w+)\.(weight|bias)")

# GGUF key below the architecture's name -> config.json key.
CONFIG_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
ORIGINAL_CONTEXT = "original_context_length"
ROPE_SCALING_KEYS = {
    "factor": "factor",
    ORIGINAL_CONTEXT: "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
SCALING_PREFIX = "rope.scaling."
LONG_DIVISORS = "rope_factors_long.weight"
TOKEN_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
END_OF_TURN = ("eot_token_id", "eom_token_id")  # tokens that end an answer beside eos
MAX_F32 = 3.4028234663852886e38


def tensor_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; unknown names as they are."""
    if match := LAYER.fullmatch(name):
        layer, part, suffix = match.groups()
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}" if part in LAYER_NAMES else name
    if (match := TOP.fullmatch(name)) and match[1] in TOP_NAMES:
        return f"{TOP_NAMES[match[1]]}.{match[2]}"
    return name


def config(gguf: GgufFile) -> dict[str, Any]:
    """config.json's content. Raises CheckpointError where general.architecture is missing."""
    metadata, path = gguf.metadata, gguf.file.path
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise CheckpointError(f"{path}: no general.architecture.", "This GGUF does not say which model it is.")
    found: dict[str, Any] = {"architectures": [f"{arch.capitalize()}ForCausalLM"], "model_type": arch}
    prefix = f"{arch}."
    for key in metadata:
        if key.startswith(prefix) and not key.startswith(prefix + SCALING_PREFIX):
            short = key.removeprefix(prefix)
            found[CONFIG_KEYS.get(short, key)] = _as_json(metadata[key])
    if found.get("sliding_window") == 0:  # says that there is none
        found["sliding_window"] = None
    rotated = found.pop(f"{prefix}rope.dimension_count", None)
    _rope_scaling(metadata, prefix, found, LONG_DIVISORS in gguf.tensors)
    if "num_attention_heads" in found:
        found.setdefault("num_key_value_heads", found["num_attention_heads"])
    _head_sizes(found, prefix, rotated)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is not None:
        found["vocab_size"] = embedding.shape[0]
    elif count := metadata.count("tokenizer.ggml.tokens"):
        found.setdefault("vocab_size", count)
    found["tie_word_embeddings"] = "output.weight" not in gguf.tensors
    return found | _token_ids(metadata, path)


def generation_config(gguf: GgufFile) -> dict[str, Any]:
    """generation_config.json's content: token ids, with all that end an answer."""
    found = _token_ids(gguf.metadata, gguf.file.path)
    ends = [found["eos_token_id"]] if "eos_token_id" in found else []
    ends += [token for key in END_OF_TURN if (token := _token_id(gguf.metadata, key, gguf.file.path)) is not None]
    if len(ends) > 1:
        found["eos_token_id"] = list(dict.fromkeys(ends))
    return found


def _head_sizes(found: dict[str, Any], prefix: str, rotated: object) -> None:
    """value_length and rope.dimension_count say something only where they differ from the head's width."""
    width, heads, head_dim = found.get("hidden_size"), found.get("num_attention_heads"), found.get("head_dim")
    if head_dim is None and isinstance(width, int) and isinstance(heads, int) and heads:
        head_dim = width // heads
    value_length = found.pop(f"{prefix}attention.value_length", None)
    if value_length is not None and value_length != head_dim:
        found["v_head_dim"] = value_length
    if isinstance(rotated, int) and isinstance(head_dim, int) and head_dim and rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim


def _rope_scaling(metadata: GgufMetadata, prefix: str, found: dict[str, Any], divided: bool) -> None:
    """`rope_scaling` with rope_type; a factor without a type is linear. Untranslated keys keep their GGUF names.

    `divided`: the file has divisors for each pair as tensors, which makes it longrope where no type is said.
    """
    given = {key.removeprefix(prefix + SCALING_PREFIX): _as_json(metadata[key])
             for key in metadata if key.startswith(prefix + SCALING_PREFIX)}  # fmt: skip
    old_factor = found.pop(f"{prefix}rope.scale_linear", None)
    if old_factor is not None:
        given.setdefault("factor", old_factor)
    given.pop("finetuned", None)
    kind = given.pop("type", "longrope" if divided else "linear" if given.get("factor") else "none")
    if kind == "none":
        given.pop("factor", None)
        kind = "default"
    if divided and ORIGINAL_CONTEXT in given:  # where the families that have such tensors look for it
        found[ROPE_SCALING_KEYS[ORIGINAL_CONTEXT]] = given.pop(ORIGINAL_CONTEXT)
    if kind == "default" and not given.keys() - {ORIGINAL_CONTEXT}:
        return
    found["rope_scaling"] = {"rope_type": kind} | {ROPE_SCALING_KEYS.get(key, key): v for key, v in given.items()}


def _token_ids(metadata: GgufMetadata, path: Path) -> dict[str, Any]:
    pairs = ((name, _token_id(metadata, key, path)) for key, name in TOKEN_IDS.items())
    return {name: token for name, token in pairs if token is not None}


def _token_id(metadata: Mapping[str, object], key: str, path: Path) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        what = f"tokenizer.ggml.{key} is {quoted(value)}, not a token id."
        raise CheckpointError(f"{path}: {what}", "The file is damaged: fetch it again.")
    return value


def _as_json(value: object) -> object:
    """A metadata value as JSON would have it: equal values of all layers as one, fp32 numbers as they were written."""
    if isinstance(value, tuple):
        return _as_json(value[0]) if value and value.count(value[0]) == len(value) else [_as_json(v) for v in value]
    return shortest(value) if isinstance(value, float) else value


def shortest(value: float) -> float:
    """The shortest decimal that rounds to the same fp32 number: 9.999999747378752e-06 was written as 1e-05."""
    if abs(value) > MAX_F32 or value != struct.unpack("<f", wanted := struct.pack("<f", value))[0]:
        return value  # a double, or no number
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if abs(short) <= MAX_F32 and struct.pack("<f", short) == wanted:
            return short
    return value
