"""transformers' model of a Gemma 3 GGUF file, by its own reading of config, names and numbers. None of our code."""

from pathlib import Path

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def oracle(path: Path) -> Gemma3ForCausalLM:
    """The model in fp32, of the numbers that the file's blocks stand for."""
    with torch.device("meta"):
        names = Gemma3ForCausalLM(Gemma3TextConfig())  # those of more layers than the file has do no harm
    file = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=names)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**file["config"])).eval()
    missing, unexpected = model.load_state_dict(file["tensors"], strict=False)
    assert not unexpected, unexpected
    assert not set(missing) - {"lm_head.weight"}, missing
    model.tie_weights()
    return model
