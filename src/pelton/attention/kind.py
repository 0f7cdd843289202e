"""The interface of an attention kind: the cache it needs and the ops it adds. It knows shapes, not families."""

from dataclasses import dataclass
from typing import Protocol

from pelton.layers.norm import NormShape
from pelton.program.builder import Builder
from pelton.program.states import KVSpec


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one layer and what it does beside the products.

    `biased`: those of the projections q, k, v and o that have a bias. `pairs_adjacent`: the file keeps rotary pairs of
    q and k side by side, where the ops want (j, j + head_dim / 2). `interleaved`: the model itself turns the pairs
    (2j, 2j + 1). `window`: tokens a query sees, itself included (None: all before it). `softcap`: of the scores (0:
    none). `head_norm`: of each head of q and k, before they are turned; `row_norm`: of all of q and of all of k.
    `slopes`: of biases that grow with distance, one for each query head (arXiv 2108.12409).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    biased: tuple[str, ...] = ()
    pairs_adjacent: bool = False
    interleaved: bool = False
    window: int | None = None
    softcap: float = 0.0
    head_norm: NormShape | None = None
    row_norm: NormShape | None = None
    slopes: tuple[float, ...] = ()


class AttentionKind(Protocol):
    """Adds one layer's attention, from the normed input to the output projection."""

    def kv_spec(self, shape: AttentionShape) -> KVSpec:
        """What each token leaves in the cache; layers with equal specs share a pool."""
        ...

    def add(self, builder: Builder, x: str, rope: str | None, prefix: str, shape: AttentionShape) -> str:
        """x [T, hidden] -> [T, hidden], with tensors named `prefix`.* and the step's rotary table `rope`.

        None: q and k are not turned.
        """
        ...
