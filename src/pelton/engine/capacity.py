"""How many KV blocks to make and how long a request may be: arithmetic on sizes, no allocation.

Invariant: one request of `max_model_len` tokens always fits in the blocks, so every request that is let in can end.
"""

from dataclasses import dataclass

from pelton.core.config import CacheSection
from pelton.core.errors import CapacityError, SettingError

FREE_SHARE = 4  # the default cache takes at most a fourth of the free memory
DEFAULT_CAP = 4 << 30  # and at most this many bytes
UNKNOWN_CAP = 1 << 30  # or this many where a backend does not tell its free memory
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheSize:
    """`blocks`: all to allocate, the null block among them. `note`: what was cut, for the user."""

    blocks: int
    max_model_len: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What the cache is for: the model was made for `context` tokens, the user set `asked`; `rows` requests at once."""

    context: int
    asked: int | None
    rows: int
    block_size: int
    block_bytes: int
    free_memory: int

    def blocks(self, tokens: int) -> int:
        """Blocks that hold this many tokens of one request."""
        return -(-tokens // self.block_size)

    def mib(self, blocks: int) -> float:
        """Size of `blocks` blocks and the null block in MiB."""
        return (blocks + 1) * self.block_bytes / MIB


def size_cache(cache: CacheSection, demand: CacheDemand) -> CacheSize:
    """The cache's size by `num_blocks`, else by `kv_cache_memory_bytes`, else by demand, capped by free memory.

    Raises SettingError for a length beyond the model's, CapacityError (saying what would fit) for one beyond the cache.
    Without a length set by the user, a small cache shortens the model's own, and the note says so.
    """
    if demand.asked is not None and demand.asked > demand.context:
        raise SettingError(
            f"max_model_len={demand.asked} is beyond the {demand.context} tokens this model was made for.",
            f"Set at most {demand.context}.",
        )
    length = demand.asked or demand.context
    usable = _usable(cache, demand, length)
    if usable < 1:
        raise CapacityError(
            f"The KV cache has room for no block: one takes {demand.block_bytes} bytes, and one more is reserved.",
            f"Set kv_cache_memory_bytes to at least {2 * demand.block_bytes}.",
        )
    fits = usable * demand.block_size
    if fits >= length:
        return CacheSize(usable + 1, length)
    need = demand.blocks(length)
    if demand.asked is not None:
        raise CapacityError(
            f"max_model_len={length} needs {need} KV blocks ({demand.mib(need):.1f} MiB), and the cache has {usable} "
            f"({demand.mib(usable):.1f} MiB).",
            f"Set max_model_len={fits}, or kv_cache_memory_bytes={(need + 1) * demand.block_bytes}.",
        )
    size = f"{demand.mib(usable):.1f} MiB"
    note = f"max_model_len is {fits} and not the model's {length}: the KV cache of {size} holds no more"
    return CacheSize(usable + 1, fits, note)


def _usable(cache: CacheSection, demand: CacheDemand, length: int) -> int:
    """Blocks for tokens, without the null block."""
    if cache.num_blocks is not None:
        return cache.num_blocks
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes // demand.block_bytes - 1
    cap = min(demand.free_memory // FREE_SHARE, DEFAULT_CAP) if demand.free_memory else UNKNOWN_CAP
    return min(demand.rows * demand.blocks(length), cap // demand.block_bytes - 1)
