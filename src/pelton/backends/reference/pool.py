"""Paged KV memory as plain tensors: per group [blocks, layers, heads, 32 tokens, dim] for keys and for values."""

from collections.abc import Mapping

import numpy as np
import torch

from pelton.backends.backend import Float32
from pelton.program.states import State

BLOCK = 32


class KVPool:
    """The blocks of one KV group. Slots hold what was last written; nothing is ever read that a table does not name."""

    def __init__(self, state: State, blocks: int, dtype: torch.dtype) -> None:
        self.spec = spec = state.spec
        self.keys = torch.zeros(blocks, state.layers, spec.heads, BLOCK, spec.key_dim, dtype=dtype)
        self.values = torch.zeros(blocks, state.layers, spec.heads, BLOCK, spec.value_dim, dtype=dtype)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """keys, values [T, heads, dim] enter the slots [T] (block x 32 + place)."""
        blocks, places = slots // BLOCK, slots % BLOCK
        self.keys[blocks, layer, :, places] = keys.to(self.keys.dtype)
        self.values[blocks, layer, :, places] = values.to(self.values.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 keys and values [heads, slots, dim]."""
        blocks, places = slots // BLOCK, slots % BLOCK
        keys, values = self.keys[blocks, layer, :, places], self.values[blocks, layer, :, places]
        return keys.float().transpose(0, 1), values.float().transpose(0, 1)


class ReferenceBlocks:
    """BlockOps over the pools of all groups."""

    def __init__(self, pools: Mapping[str, KVPool]) -> None:
        self._pools = pools

    def copy(self, source: int, target: int) -> None:
        for pool in self._pools.values():
            pool.keys[target] = pool.keys[source]
            pool.values[target] = pool.values[source]

    def scrub(self, block: int) -> None:
        """Zeros the block in all layers."""
        for pool in self._pools.values():
            pool.keys[block] = 0
            pool.values[block] = 0

    def export_canonical(self, block: int, tokens: int) -> dict[str, Float32]:
        """Per group: fp32 [layers, 2, heads, tokens, dim] of the block's first tokens."""
        exported = {}
        for name, pool in self._pools.items():
            both = torch.stack((pool.keys[block, :, :, :tokens], pool.values[block, :, :, :tokens]), dim=1)
            exported[name] = np.asarray(both.float().numpy(), dtype=np.float32)
        return exported

    def import_canonical(self, block: int, data: dict[str, Float32]) -> None:
        """The opposite of export: data[group] becomes the block's first tokens, the others zero."""
        self.scrub(block)
        for name, array in data.items():
            pool, tokens = self._pools[name], array.shape[3]
            both = torch.from_numpy(np.array(array, dtype=np.float32))
            pool.keys[block, :, :, :tokens] = both[:, 0].to(pool.keys.dtype)
            pool.values[block, :, :, :tokens] = both[:, 1].to(pool.values.dtype)
