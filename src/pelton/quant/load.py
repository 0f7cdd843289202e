"""What settings ask of a module's matrices before it is compiled: that dense ones are quantised, and their form.

No bytes are read here. Invariant: vectors and matrices that are codes already stay as they are.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from pelton.core.errors import SettingError
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.weights import CODES, GATHER, VECTOR, Storage
from pelton.quant.method import Method
from pelton.quant.rounding import RoundedSource, Rounding

EVEN = 1 << 10  # columns that every group divides


def quantised(module: Module, method: Method) -> tuple[Module, tuple[str, ...]]:
    """The module with its dense matrices quantised as they are read, and what the user should know of it.

    SettingError if some matrix is quantised already, or none can be.
    """
    refuse_coded(matrices(module), f"quantization={method.label()!r}")
    chosen = plan(module, method)
    if not chosen:
        raise SettingError(
            f"quantization={method.label()!r} has no effect: no matrix has rows that can be cut so.", "Leave it out."
        )
    storages = {
        name: replace(storage, source=RoundedSource(storage.source, rounding), made=method.label())
        for name, rounding in chosen.items()
        if (storage := module.storages[name])
    }
    notes = fallbacks(module, method, chosen)
    return replace(module, storages={**module.storages, **storages}), notes


def plan(module: Module, method: Method) -> dict[str, Rounding]:
    """Storage -> what it becomes, of those that change."""
    tables = _tables(module)
    wanted = {s.name: method.rounding(s.cols, table=s.name in tables) for s in matrices(module)}
    return {name: rounding for name, rounding in wanted.items() if rounding is not None}


def fallbacks(module: Module, method: Method, chosen: dict[str, Rounding]) -> tuple[str, ...]:
    """A sentence for each width that got other groups than asked for, or none."""
    tables = _tables(module)
    odd: Counter[tuple[int, int | None]] = Counter()
    for storage in matrices(module):
        rounding, table = chosen.get(storage.name), storage.name in tables
        asked = method.rounding(EVEN, table=table)
        if asked is not None and rounding != asked:
            odd[storage.cols, rounding.group if rounding else None] += 1
    return tuple(
        f"Quantization {method.label()}: {count} matrices of {cols} columns "
        + (f"got groups of {group}." if group else "stay as they are: no group divides their rows.")
        for (cols, group), count in odd.items()
    )


def with_form(module: Module, form: str) -> Module:
    """The module with its quantised matrices multiplied in this form; SettingError if it has none."""
    if form == CODES:
        return module
    coded = {s.name: replace(s, form=form) for s in matrices(module) if FORMATS[s.format].codes}
    if not coded:
        raise SettingError(
            f"linear_form={form!r} has no effect: the model has no quantised matrices.",
            "Leave it out, or set quantization.",
        )
    return replace(module, storages={**module.storages, **coded})


def matrices(module: Module) -> list[Storage]:
    """The storages that are no vectors."""
    vectors = {view.storage for view in module.weights.values() if view.use == VECTOR}
    return [storage for name, storage in module.storages.items() if name not in vectors]


def refuse_coded(storages: Iterable[Storage], asked: str) -> None:
    """SettingError if some of these matrices are codes already; `asked`: the setting and its value."""
    coded = sorted({storage.format for storage in storages if FORMATS[storage.format].codes})
    if coded:
        raise SettingError(
            f"{asked} cannot work: the model's weights are quantised already ({', '.join(coded)}).",
            "Leave it out, or take the model in bf16 (of one on the Hub: pelton pull OWNER/NAME).",
        )


def _tables(module: Module) -> set[str]:
    """Storages that are looked up by token, and those that make logits."""
    heads = {name for entry in module.entries.values() for op in entry.ops if op.kind == "head" for name in op.weights}
    return {view.storage for view in module.weights.values() if view.use == GATHER or view.name in heads}
