"""Other spellings of config keys and tensor names, brought to the ones that families read.

No mathematics and no family: tables of names come from the family. Invariant: nothing is dropped, so what a table does
not know is told later by its own name.
"""

import re
from collections.abc import Mapping

from pelton.models.config import unsupported
from pelton.models.tensors import Tensors, renamed
from pelton.program.weights import TensorSource

IN_LAYER = re.compile(r"(?:model\.layers|blk|h)\.(\d+)\.(.+)\.(weight|bias)")


def same_keys(raw: Mapping[str, object], spellings: Mapping[str, str]) -> dict[str, object]:
    """The config with each key of `spellings` under the name it gives.

    Raises UnsupportedModelError where two spellings of one key differ.
    """
    found = {key: value for key, value in raw.items() if key not in spellings}
    for key, standard in spellings.items():
        value = raw.get(key)
        if value is None:
            continue
        if found.get(standard) not in (None, value):
            raise unsupported(key, value, f"the same as in {standard}, or one of the two alone")
        found[standard] = value
    return found


def renamed_parts(tensors: Tensors, parts: Mapping[str, str]) -> dict[str, TensorSource]:
    """Tensors with new names for parts: for what stands between a layer's number (or nothing) and .weight or .bias."""

    def rename(name: str) -> str:
        if match := IN_LAYER.fullmatch(name):
            layer, part, suffix = match.groups()
            return f"model.layers.{layer}.{parts[part]}.{suffix}" if part in parts else name
        part, _, suffix = name.rpartition(".")
        return f"{parts[part]}.{suffix}" if part in parts else name

    return renamed(tensors, rename)
