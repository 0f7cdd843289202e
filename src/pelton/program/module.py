"""Module: tables of weights and states and, over them, entries (static op lists).

Built once, then executed, costed, explained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pelton.program.op import Op, Tables
from pelton.program.states import State
from pelton.program.values import Value
from pelton.program.weights import Storage, WeightView


@dataclass(frozen=True, slots=True)
class Entry:
    """One static op list, in execution order. `inputs`: values given from outside; `values`: all others by name."""

    name: str
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A model as data. `vocab`: size of the logits; `context`: positions the model was made for."""

    storages: Mapping[str, Storage]
    weights: Mapping[str, WeightView]
    states: Mapping[str, State]
    entries: Mapping[str, Entry]
    vocab: int
    context: int

    def tables(self, entry: str, *, exact: bool = False) -> Tables:
        """The look-up tables of one entry's ops."""
        return Tables(self.storages, self.weights, self.states, self.entries[entry].values, exact)

    def with_entry(self, entry: Entry) -> "Module":
        """A copy in which one entry is replaced (what passes return)."""
        return replace(self, entries={**self.entries, entry.name: entry})

    @property
    def weight_bytes(self) -> int:
        return sum(storage.nbytes for storage in self.storages.values())

    def kv_token_bytes(self, element: int) -> int:
        """KV bytes of one token in all layers."""
        return sum(state.layers * state.spec.token_bytes(element) for state in self.states.values())
