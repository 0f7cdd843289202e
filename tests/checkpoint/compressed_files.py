"""Folders in the layout of compressed-tensors, written from its description with numpy, for tests of the reader."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

Ints = NDArray[np.int64]
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def packed(stored: Ints, bits: int) -> torch.Tensor:
    """Integers plus half their range, [rows, count], one after the other into words of 32 bits, lowest bits first."""
    rows, count = stored.shape
    each = 32 // bits
    words = np.zeros((rows, -(-count // each)), np.uint32)
    for place in range(count):
        words[:, place // each] |= stored[:, place].astype(np.uint32) << np.uint32(bits * (place % each))
    return torch.from_numpy(words.view(np.int32).copy())


@dataclass
class Module:
    """One quantised weight: integers of the range around 0, scales [rows, groups], zero points alike, or none."""

    codes: Ints
    scale: torch.Tensor
    bits: int
    zero: Ints | None = None

    @property
    def numbers(self) -> NDArray[np.float32]:
        """(code - zero point) * scale."""
        scale = self.scale.float().numpy().reshape(-1, self.scale.shape[-1] if self.scale.ndim > 1 else 1)
        scale = np.broadcast_to(scale, (len(self.codes), scale.shape[1]))
        codes = self.codes.reshape(*scale.shape, -1)
        if self.zero is not None:
            codes = codes - self.zero[..., None]
        return (codes.astype(np.float32) * scale[..., None]).reshape(self.codes.shape).astype(np.float32)

    def tensors(self, name: str, form: str) -> dict[str, torch.Tensor]:
        if form != "pack-quantized":
            return {
                f"{name}.weight": torch.from_numpy(self.codes.astype(np.int8)),
                f"{name}.weight_scale": self.scale,
            }
        half = 1 << self.bits - 1
        found = {
            f"{name}.weight_packed": packed(self.codes + half, self.bits),
            f"{name}.weight_scale": self.scale,
            f"{name}.weight_shape": torch.tensor(self.codes.shape),
        }
        if self.zero is not None:
            found[f"{name}.weight_zero_point"] = packed((self.zero + half).T, self.bits).T.contiguous()
        return found


def drawn(rows: int, cols: int, bits: int, group: int, dtype: str, *, zeros: bool = False, seed: int = 0) -> Module:
    """A random one; `group` 0: a scale for each row."""
    random = np.random.default_rng([seed, rows, cols, bits, group])
    half, groups = 1 << bits - 1, cols // group if group else 1
    codes = random.integers(-half, half, (rows, cols))
    scale = torch.from_numpy(random.uniform(0.001, 0.02, (rows, groups)).astype(np.float32)).to(DTYPES[dtype])
    zero = random.integers(-half, half, (rows, groups)) if zeros else None
    return Module(codes, scale, bits, zero)


def settings(form: str = "pack-quantized", ignore: tuple[str, ...] = ("lm_head",), **weights: Any) -> dict[str, Any]:
    """quantization_config with one group."""
    table = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**table, **weights},
                "input_activations": None,
                "output_activations": None,
            }
        },
    }


def write(folder: Path, entry: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    """A folder with these settings in the config and these tensors, and a head in bf16."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": entry}))
    others = {"lm_head.weight": torch.ones(3, 8, dtype=torch.bfloat16)}
    save_file(
        {**others, **{name: tensor.clone().contiguous() for name, tensor in tensors.items()}},
        folder / "model.safetensors",
    )
    return folder
