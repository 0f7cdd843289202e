"""What the settings of a checkpoint say of its quantisation: read where it is supported, else refused with the reason.

It reads no weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.checkpoint.compressed.settings import METHOD, Settings, read_settings
from pelton.checkpoint.json_files import read_object
from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

CONFIG = "config.json"
OWN_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
# method -> what running it would take.
NEEDS: Mapping[str, str] = {
    "awq": "a reader of its packed 4-bit weights with scales and zero points per group",
    "gptq": "a reader of its packed 2- to 8-bit weights with scales, zero points and a column order",
    "fp8": "8-bit floating point kernels and scales per tensor or block",
    "fbgemm_fp8": "8-bit floating point kernels and scales per row",
    "bitsandbytes": "its 8-bit outlier or 4-bit NF4 decomposition",
    "mxfp4": "4-bit floating point kernels with a shared exponent per 32 weights",
    "modelopt": "FP8 or FP4 kernels and its scales",
    "nvfp4": "4-bit floating point kernels with FP8 scales per 16 weights",
}
ALIKE = {"gptq_marlin": "gptq", "awq_marlin": "awq", "auto-round": "gptq", "auto_gptq": "gptq"}
REMEDY = (
    "Take a GGUF of this model (repositories that end in -GGUF, such as org/name-GGUF:Q4_K_M), or the repository "
    "without quantisation."
)


ENTRIES = ("quantization_config", "compression_config")


def refuse_quantised(folder: Path, name: str | None = None) -> Settings | None:
    """What a model folder's settings say of its quantisation, None where there is none.

    CheckpointError for one that is not supported; `name`: how the user calls the model.
    """
    found = None
    for file, method, detail, entry in _declared(folder):
        if method == METHOD and entry is not None:
            found = read_settings(entry, f"{name}: {file.name}" if name is not None else str(file))
            continue
        known = ALIKE.get(method.lower(), method.lower())
        need = f"; it would take {NEEDS[known]}" if known in NEEDS else ""
        where = f"{name}: {file.name}" if name is not None else str(file)
        raise CheckpointError(
            f"{where}: quantization method {quoted(method)}{detail} is not supported yet{need}.", REMEDY
        )
    return found


def _declared(folder: Path) -> list[tuple[Path, str, str, dict[str, Any] | None]]:
    """(file, method, details, the entry of the whole model) of what the settings say."""
    config = _read(folder / CONFIG)
    found = []
    for table in (config, *(part for part in config.values() if isinstance(part, dict))):
        entry = next((table[key] for key in ENTRIES if table.get(key)), None)
        if entry:
            whole = entry if table is config and isinstance(entry, dict) else None
            found.append((folder / CONFIG, *_method(entry), whole))
    for name in OWN_FILES:
        entry = _read(folder / name)
        if entry:
            found.append((folder / name, *_method(entry.get("quantization") or entry, name), None))
    return found


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _method(entry: object, file: str = "") -> tuple[str, str]:
    """The method's name and what else is said of it."""
    if not isinstance(entry, dict):
        return str(entry), ""
    method = entry.get("quant_method") or entry.get("quant_algo")
    if method is None and (entry.get("load_in_4bit") or entry.get("load_in_8bit")):
        method = "bitsandbytes"
    if method is None and file == "quantize_config.json":
        method = "gptq"
    if method is None and file == "quant_config.json" and "w_bit" in entry:
        method = "awq"
    bits = entry.get("bits") or entry.get("w_bit") or (4 if entry.get("load_in_4bit") else None)
    group = entry.get("group_size") or entry.get("q_group_size")
    detail = f" ({bits} bits" if isinstance(bits, int) else ""
    if detail and isinstance(group, int) and group > 0:
        detail += f", groups of {group}"
    return str(method or "unnamed"), f"{detail})" if detail else ""
