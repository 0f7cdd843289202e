"""The interface of a KV codec: how keys and values are stored. Kernels know layouts, nothing else knows the bytes."""

from typing import Protocol

from pelton.core.needs import Needs

UNCODED = "plain"  # the layout of every backend: numbers as they were computed


class Geometry(Protocol):
    """What a codec asks of a layer's cache; program's KVSpec is one. (Counting blocks must not load the Program.)"""

    @property
    def heads(self) -> int: ...
    @property
    def key_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    def token_bytes(self, element: int) -> int:
        """Bytes a token takes uncoded, `element` bytes a number."""
        ...


class KVCodec(Protocol):
    """One way to store K and V; `layout` is the name by which kernels know it."""

    layout: str
    needs: Needs

    def bytes_per_block(self, spec: Geometry, tokens: int, element: int) -> int:
        """Bytes of one layer's block of `tokens` tokens, `element` bytes a number before coding."""
        ...
