"""Paged KV memory as plain tensors: per group [blocks, layers, heads, 32 tokens, dim] for keys and for values."""

import numpy as np
import torch

from pelton.backends.backend import Bytes, Float32
from pelton.program.states import State

BLOCK = 32


class KVPool:
    """The blocks of one KV group, number `group` in the order of the module's states.

    Slots hold what was last written; nothing is ever read that a table does not name. `host` [slots, bytes of a block]:
    copies of blocks, keys before values.
    """

    def __init__(self, state: State, group: int, blocks: int, dtype: torch.dtype) -> None:
        self.group = group
        self.spec = spec = state.spec
        self.keys = torch.zeros(blocks, state.layers, spec.heads, BLOCK, spec.key_dim, dtype=dtype)
        self.values = torch.zeros(blocks, state.layers, spec.heads, BLOCK, spec.value_dim, dtype=dtype)
        self.host: Bytes = np.zeros((0, 0), np.uint8)

    def content(self, block: int) -> Bytes:
        """A copy of a block, as bytes."""
        both = (self.keys[block].reshape(-1), self.values[block].reshape(-1))
        content: Bytes = torch.cat([part.view(torch.uint8) for part in both]).numpy()
        return content

    def fill(self, block: int, content: Bytes) -> None:
        """Bytes as `content` tells them become a block."""
        if content.shape != (self.keys[block].nbytes + self.values[block].nbytes,):
            raise ValueError(f"a block of {content.shape} bytes")
        raw = torch.from_numpy(content).view(self.keys.dtype)
        keys, values = self.keys[block], self.values[block]
        keys.copy_(raw[: keys.numel()].view(keys.shape))
        values.copy_(raw[keys.numel() :].view(values.shape))

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

    def __init__(self, pools: tuple[KVPool, ...]) -> None:
        self._pools = pools

    def copy(self, group: int, source: int, target: int) -> None:
        pool = self._pools[group]
        pool.keys[target] = pool.keys[source]
        pool.values[target] = pool.values[source]

    def scrub(self, group: int, block: int) -> None:
        """Zeros the block in all layers of the group."""
        self._pools[group].keys[block] = 0
        self._pools[group].values[block] = 0

    def reserve(self, slots: tuple[int, ...]) -> None:
        for pool, count in zip(self._pools, slots, strict=True):
            pool.host = np.zeros((count, len(pool.content(0))), np.uint8)

    def slot(self, group: int, slot: int) -> Bytes:
        held: Bytes = self._pools[group].host[slot]
        return held

    def content(self, group: int, block: int) -> Bytes:
        return self._pools[group].content(block)

    def write(self, group: int, block: int, data: bytes) -> None:
        self._pools[group].fill(block, np.frombuffer(bytearray(data), np.uint8))

    def save(self, group: int, block: int, slot: int) -> None:
        """A block's bytes go to a host slot."""
        self._pools[group].host[slot] = self._pools[group].content(block)

    def load(self, group: int, slot: int, block: int) -> None:
        """The opposite."""
        pool = self._pools[group]
        pool.fill(block, pool.host[slot])

    def export_canonical(self, group: int, block: int, tokens: int) -> Float32:
        """fp32 [layers, 2, heads, tokens, dim] of the block's first tokens."""
        pool = self._pools[group]
        both = torch.stack((pool.keys[block, :, :, :tokens], pool.values[block, :, :, :tokens]), dim=1)
        return np.asarray(both.float().numpy(), dtype=np.float32)

    def import_canonical(self, group: int, block: int, data: Float32) -> None:
        """The opposite of export: `data` becomes the block's first tokens, the others zero."""
        self.scrub(group, block)
        pool, tokens = self._pools[group], data.shape[3]
        both = torch.from_numpy(np.array(data, dtype=np.float32))
        pool.keys[block, :, :, :tokens] = both[:, 0].to(pool.keys.dtype)
        pool.values[block, :, :, :tokens] = both[:, 1].to(pool.values.dtype)
