"""What layers remember between steps: KV groups (and later recurrent states). Equal specs share a pool and tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Geometry of one layer's cache. `window`: tokens a query sees, itself included (None: all before it)."""

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    state_bytes: int = 0

    def token_bytes(self, element: int) -> int:
        """Bytes a token takes in one layer, `element` bytes a number."""
        return self.heads * (self.key_dim + self.value_dim) * element


@dataclass(frozen=True, slots=True)
class State:
    """A KV group: `layers` layers of one spec, addressed by (group name, layer within the group)."""

    name: str
    spec: KVSpec
    layers: int
