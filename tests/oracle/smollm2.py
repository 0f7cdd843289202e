"""transformers' model of a Llama GGUF file: its weights decoded to fp32, its q and k rows put back in order.

Uses our readers for names and bytes, but none of our model code, so that it can be the oracle of that code.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.program.formats import FORMATS
from pelton.program.weights import TensorSource


def decoded(source: TensorSource) -> torch.Tensor:
    """fp32 numbers of the tensor's shape."""
    rows, cols = source.shape if len(source.shape) == 2 else (1, *source.shape)
    numbers = FORMATS[source.format].decode(source.read(), rows, cols)
    return torch.from_numpy(numbers.reshape(source.shape).copy())


def half_split(stored: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows as transformers wants them, from the order [head, pair, 2] that GGUF files have."""
    return stored.reshape(heads, -1, 2, *stored.shape[1:]).transpose(1, 2).reshape(stored.shape)


def llama_config(checkpoint: Checkpoint) -> LlamaConfig:
    """The file's config as transformers reads it."""
    keys = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings"
    ).split()
    known = {key: checkpoint.config[key] for key in keys if key in checkpoint.config}
    rope = {"rope_type": "default", "rope_theta": checkpoint.config["rope_theta"]}
    return LlamaConfig(rope_parameters=rope, pad_token_id=None, **known)


def oracle(path: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The model with all weights in `dtype`, rounded from the fp32 numbers that the file's blocks stand for."""
    checkpoint = open_checkpoint(path)
    config = llama_config(checkpoint)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights = {}
    for name, source in checkpoint.tensors.items():
        part = name.split(".")[-2]
        weights[name] = half_split(decoded(source), heads[part]) if part in heads else decoded(source)
    checkpoint.close()
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert not set(missing) - {"lm_head.weight"}, missing
    model.tie_weights()
    # The rotary frequencies must stay in fp32, as from_pretrained would keep them.
    for part in model.modules():
        for parameter in part.parameters(recurse=False):
            parameter.data = parameter.data.to(dtype)
    return model
