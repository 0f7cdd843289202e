"""What kernels of the reference backend see of a step: sequences, caches and values as they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pelton.backends.reference.pool import BLOCK, KVPool
from pelton.backends.reference.weights import Weights
from pelton.program.op import Op

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence's part of the step: tokens [first, first + count) stand at indices [start, start + count).

    `tables` [groups, blocks]: its blocks in each KV group. `paths` bool [count, count]: which of its tokens a token
    sees, itself included; None: those up to itself.
    """

    first: int
    count: int
    start: int
    tables: Tensor
    paths: Tensor | None = None

    def seen(self) -> Tensor:
        """`paths`, whatever they are."""
        return torch.ones(self.count, self.count).tril().bool() if self.paths is None else self.paths

    def indices(self) -> Tensor:
        """The place of each token on its own path: [count]."""
        return self.start + self.seen().sum(1) - 1

    def slots(self, group: int, begin: int, end: int) -> Tensor:
        """Where the indices [begin, end) are cached in a KV group."""
        indices = torch.arange(begin, end)
        return self.tables[group, indices // BLOCK] * BLOCK + indices % BLOCK


@dataclass(frozen=True, slots=True)
class Step:
    """All that kernels see: weights, caches, the step's sequences and logit rows [R], and values as they are made.

    `exact`: fp32 throughout; otherwise inputs of products are rounded to bf16.
    """

    weights: Weights
    pools: Mapping[str, KVPool]
    sequences: tuple[Sequence, ...]
    logit_rows: Tensor
    exact: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def inputs(self, op: Op) -> list[Tensor]:
        return [self.values[name] for name in op.inputs]

    def rounded(self, x: Tensor) -> Tensor:
        """An input of a product, as the arithmetic of this step sees it."""
        return x if self.exact else x.bfloat16().float()

    def pool(self, op: Op) -> KVPool:
        assert op.state is not None, op
        return self.pools[op.state]


def per_head(x: Tensor, heads: int) -> Tensor:
    """[T, heads x dim] as [T, heads, dim]."""
    return x.reshape(len(x), heads, -1)


def paths_of(parents: list[int]) -> Tensor:
    """Sequence.paths of a tree, from each token's parent (-1: the token before them)."""
    paths = torch.eye(len(parents)).bool()
    for token, parent in enumerate(parents):
        if parent >= 0:
            paths[token] |= paths[parent]
    return paths
