"""activations: products of coded matrices take their rows rounded to 8 bits, where a setting wants it.

It decides which ops do so; what it means is in docs/numerics.md. Invariant: an op with a matrix that is not codes stays
as it is, and so does the head.
"""

from collections.abc import Mapping
from dataclasses import replace

from pelton.core.errors import SettingError
from pelton.core.needs import Claim, Needs
from pelton.program.formats import FORMATS
from pelton.program.module import Entry, Module
from pelton.program.op import Op

AUTO, INT8 = "auto", "int8"
NEEDS: Mapping[str, Needs] = {AUTO: Needs(), INT8: Needs(claim=Claim.LOSSY)}


def with_activations(module: Module, activations: str) -> tuple[Module, tuple[str, ...]]:
    """The module with its products marked, and what the user should know of that; SettingError where none can be."""
    if activations == AUTO:
        return module, ()
    changed = module
    for entry in module.entries.values():
        ops = tuple(_marked(op, module, activations) for op in entry.ops)
        changed = changed.with_entry(replace(entry, ops=ops))
    marked = sum(map(_products, changed.entries.values()))
    if not marked:
        raise SettingError(
            f"activations={activations!r} has no effect: the model has no quantised matrices.",
            "Add quantization='int8', or take a quantised model.",
        )
    note = "Activations are rounded to 8 bits before products with quantised weights: faster, and not the same answers"
    return changed, (f"{note} (docs/quantization.md).",)


def described(module: Module) -> str:
    """What coded matrices are multiplied with, for the report of a start; "" where no row is rounded."""
    ops = [op for entry in module.entries.values() for op in entry.ops if op.kind in ("linear", "head")]
    marked = sum(len(op.weights) for op in ops if op.text("activations"))
    every = sum(len(op.weights) for op in ops)
    others = f" (bf16 in {every - marked} of {every} products)" if every > marked else ""
    return f"activations of 8 bits{others}" if marked else ""


def _products(entry: Entry) -> int:
    return sum(1 for op in entry.ops if op.text("activations"))


def _marked(op: Op, module: Module, activations: str) -> Op:
    if op.kind != "linear" or not all(_is_coded(name, module) for name in op.weights):
        return op
    return replace(op, attrs={**op.attrs, "activations": activations})


def _is_coded(weight: str, module: Module) -> bool:
    return FORMATS[module.storages[module.weights[weight].storage].format].codes is not None
