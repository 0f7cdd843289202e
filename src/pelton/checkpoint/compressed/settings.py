"""What `quantization_config` of a compressed-tensors checkpoint says, as far as it is understood here.

Reads no tensors. Invariant: whatever it does not understand it refuses by its name; nothing is silently ignored that
could change a weight.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

METHOD = "compressed-tensors"
PACKED, INTEGERS, NAIVE = "pack-quantized", "int-quantized", "naive-quantized"
MIXED = "mixed-precision"
PATTERN = "re:"
LINEAR = "Linear"
# Keys that may have any value, since they tell how the checkpoint was made and not what is in it.
_TOLD = frozenset(
    "quant_method quantization_status global_compression_ratio version provider observer observer_kwargs scale_dtype "
    "zp_dtype".split()
)
# Keys of which only these values are understood.
_EMPTY: tuple[object, ...] = (None, {}, [], False)
_IN_ORDER = ("static", "weight")  # columns were quantised in another order, but stand in their own
REMEDY = "Take a GGUF of this model, another quantisation of it, or the model without."


@dataclass(frozen=True, slots=True)
class Group:
    """Modules whose weights are stored alike. `size`: weights along a row that share a scale, 0 for whole rows;
    `tensor`: one scale for all rows. `activations`: what the checkpoint wants done to activations, "" for nothing.
    """

    name: str
    targets: tuple[str, ...]
    form: str
    bits: int
    size: int
    symmetric: bool
    tensor: bool = False
    activations: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """`groups` in the order of the file; `ignore`: names and patterns of modules that are not quantised."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = field(default=())

    def ignores(self, module: str) -> bool:
        return any(_names(target, module) for target in self.ignore)

    def group_of(self, module: str) -> Group | None:
        """The group of a module whose tensors are quantised: by its name before its class, the first that fits."""
        for fits in (_names, _is_class):
            for group in self.groups:
                if any(fits(target, module) for target in group.targets):
                    return group
        return None


def _names(target: str, module: str) -> bool:
    if target.startswith(PATTERN):
        return re.match(target.removeprefix(PATTERN), module) is not None
    return target == module


def _is_class(target: str, module: str) -> bool:
    """A module with quantised weights is a linear one, whatever it is called."""
    return target == LINEAR


def read_settings(entry: Mapping[str, Any], where: str) -> Settings:
    """The settings of config.json's entry; CheckpointError for what is not understood. `where`: file or model."""
    reader = _Reader(where)
    reader.only(entry, "config_groups ignore format", "the settings")
    overall = entry.get("format")
    tables = entry.get("config_groups")
    if not isinstance(tables, dict) or not tables:
        raise reader.refusal("there are no config_groups")
    groups = [reader.group(name, table, overall) for name, table in tables.items()]
    return Settings(tuple(groups), reader.texts(entry.get("ignore"), "ignore"))


class _Reader:
    """Reads tables and refuses what it does not know."""

    def __init__(self, where: str) -> None:
        self._where = where

    def refusal(self, what: str) -> CheckpointError:
        cause = f"{self._where}: quantization method '{METHOD}' is not supported yet as it is used here: {what}."
        return CheckpointError(cause, REMEDY)

    def only(self, table: Mapping[str, Any], known: str, place: str) -> None:
        """Refuses keys that are not `known` and say something."""
        for key, value in table.items():
            if key not in _TOLD and key not in known.split() and value not in _EMPTY:
                raise self.refusal(f"{place} have {quoted(key)}: {quoted(value)}")

    def texts(self, value: object, place: str) -> tuple[str, ...]:
        """A list of names and patterns."""
        listed = value if isinstance(value, list) else [] if value is None else None
        if listed is None or not all(isinstance(item, str) for item in listed):
            raise self.refusal(f"{place} is {quoted(value)}")
        for item in listed:
            try:
                re.compile(item.removeprefix(PATTERN) if item.startswith(PATTERN) else "")
            except re.error:
                raise self.refusal(f"{place} has the pattern {quoted(item)}") from None
        return tuple(listed)

    def group(self, name: str, table: object, overall: object) -> Group:
        if not isinstance(table, dict):
            raise self.refusal(f"config_groups.{name} is {quoted(table)}")
        self.only(table, "targets weights input_activations format", f"config_groups.{name}")
        form = table.get("format") or (overall if overall != MIXED else None)
        form = self._one_of(
            INTEGERS if form == NAIVE else form, (PACKED, INTEGERS), f"the format of config_groups.{name}"
        )
        weights = table.get("weights")
        if not isinstance(weights, dict):
            raise self.refusal(f"config_groups.{name} has no weights")
        place = f"config_groups.{name}.weights"
        self.only(weights, "num_bits type strategy group_size symmetric actorder", place)
        self._one_of(weights.get("type", "int"), ("int",), f"{place}.type")
        self._one_of(weights.get("actorder"), (None, *_IN_ORDER), f"{place}.actorder")
        bits = self._one_of(weights.get("num_bits"), (4, 8), f"{place}.num_bits")
        if form == INTEGERS:
            self._one_of(bits, (8,), f"{place}.num_bits with {form}")
        size = weights.get("group_size")
        strategy = weights.get("strategy") or ("group" if size and size != -1 else "channel")
        self._one_of(strategy, ("group", "channel", "tensor"), f"{place}.strategy")
        symmetric = self._one_of(weights.get("symmetric", True), (True, False), f"{place}.symmetric")
        if strategy != "group":
            size = 0
        elif not isinstance(size, int) or size <= 0 or size % 32:
            raise self.refusal(f"{place}.group_size is {quoted(size)} and no multiple of 32")
        if not symmetric and (bits == 8 or strategy == "tensor"):
            raise self.refusal(f"{place} has zero points with {bits} bits per {strategy}")
        return Group(
            name=name,
            targets=self.texts(table.get("targets"), f"config_groups.{name}.targets"),
            form=str(form),
            bits=int(bits),
            size=size,
            symmetric=bool(symmetric),
            tensor=strategy == "tensor",
            activations=self._activations(table.get("input_activations"), f"config_groups.{name}"),
        )

    def _activations(self, table: object, place: str) -> str:
        """What a group says of its activations, in words."""
        if table is None:
            return ""
        if not isinstance(table, dict):
            raise self.refusal(f"{place}.input_activations is {quoted(table)}")
        kind = "" if table.get("type", "int") == "int" else f" {table.get('type')}"
        strategy = f" per {table['strategy']}" if table.get("strategy") else ""
        return f"{table.get('num_bits')} bits{kind}{strategy}"

    def _one_of(self, value: Any, known: Sequence[object], place: str) -> Any:
        if value not in known:
            raise self.refusal(f"{place} is {quoted(value)}")
        return value
