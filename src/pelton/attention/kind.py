"""The interface of an attention kind: the cache it needs and the ops it adds. It knows shapes, not families."""

from dataclasses import dataclass
from typing import Protocol

from pelton.program.builder import Builder
from pelton.program.states import KVSpec


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one layer. `biased`: those of the projections q, k, v and o that have a bias.

    `pairs_adjacent`: the file keeps rotary pairs of q and k side by side, where the ops want (j, j + head_dim / 2).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    biased: tuple[str, ...] = ()
    pairs_adjacent: bool = False


class AttentionKind(Protocol):
    """Adds one layer's attention, from the normed input to the output projection."""

    def kv_spec(self, shape: AttentionShape) -> KVSpec:
        """What each token leaves in the cache; layers with equal specs share a pool."""
        ...

    def add(self, builder: Builder, x: str, rope: str, prefix: str, shape: AttentionShape) -> str:
        """x [T, hidden] -> [T, hidden], with tensors named `prefix`.* and the step's rotary table `rope`."""
        ...
