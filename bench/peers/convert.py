"""Other precisions of a GGUF model, made from its weights, in the tools' environment (gguf, transformers).

python convert.py SOURCE.gguf FOLDER

Writes FOLDER/{bf16,f16,q8_0}.gguf, FOLDER/hf (bfloat16, safetensors) and FOLDER/hf-flat (the same with the rotary base
at the top of the config, as older readers want it). So speed can be compared between engines; quality is that of the
source in all of them. It is no part of Pelton: nothing here is imported by it.
"""

import json
import os
import shutil
import sys
from pathlib import Path

try:
    import gguf
except ModuleNotFoundError:
    raise SystemExit(
        "There is no package gguf here: this file runs in the tools' environment, which python -m bench.peers makes."
    ) from None
import numpy as np

# general.file_type of each.
TYPES = {
    "bf16": (gguf.GGMLQuantizationType.BF16, 32),
    "f16": (gguf.GGMLQuantizationType.F16, 1),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, 7),
}
OWN_FIELDS = ("general.architecture", "general.file_type")  # written by the writer, or changed
BLOCK = 32


def write_gguf(source: gguf.GGUFReader, name: str, path: Path) -> None:
    """The source with its matrices as `name`; vectors stay as they are."""
    kind, file_type = TYPES[name]
    architecture = source.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for field in source.fields.values():
        if field.name in OWN_FIELDS or field.name.startswith("GGUF."):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(file_type)
    for tensor in source.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        elif kind == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(tensor.name, values.astype(np.float16))
        elif kind == gguf.GGMLQuantizationType.Q8_0 and values.shape[-1] % BLOCK:
            raise SystemExit(f"{tensor.name}: {values.shape[-1]} columns are no whole blocks of {name}")
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf(source: Path, folder: Path) -> None:
    """Config, tokenizer and bfloat16 weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
    )
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **where).save_pretrained(folder)


def flatten(folder: Path, flat: Path) -> None:
    """A copy whose config has `rope_theta` at the top; weights are linked."""
    flat.mkdir(parents=True)
    for file in folder.iterdir():
        if file.name == "config.json":
            config = json.loads(file.read_text())
            rope = config.get("rope_parameters") or {}
            if "rope_theta" in rope:
                config.setdefault("rope_theta", rope["rope_theta"])
            config.setdefault("torch_dtype", config.get("dtype", "bfloat16"))
            (flat / file.name).write_text(json.dumps(config, indent=1))
        else:
            os.link(file, flat / file.name)


def main() -> None:
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    for name in TYPES:
        made, part = target / f"{name}.gguf", target / f"{name}.part"
        if not made.exists():
            write_gguf(reader, name, part)
            part.rename(made)
    for name in ("hf", "hf-flat"):
        made, part = target / name, target / f"{name}.part"
        if not made.exists():
            shutil.rmtree(part, ignore_errors=True)
            if name == "hf":
                write_hf(source, part)
            else:
                flatten(target / "hf", part)
            part.rename(made)


if __name__ == "__main__":
    main()
