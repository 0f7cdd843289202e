"""How many KV blocks to make and how long a request may be: arithmetic on sizes, no allocation.

Invariant: one request of `max_model_len` tokens always fits in the blocks, so every request that is let in can end.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

from pelton.core.config import CacheSection
from pelton.core.errors import CapacityError, beyond
from pelton.core.words.sizes import size_text
from pelton.kv.group import most_blocks

FREE_SHARE = 4  # the default cache takes at most a fourth of the free memory
DEFAULT_CAP = 4 << 30  # and at most this many bytes
KEPT = 4  # and where prefixes are kept, at most so many times what all rows fill
WINDOWS_KEPT = 2  # likewise, blocks of a window: of a kept prefix only its end has some
UNKNOWN_CAP = 1 << 30  # or this many where a backend does not tell its free memory
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheSize:
    """`blocks`: all to allocate for each KV group, the null block among them. `slots`: host slots of each. `notes`:
    what was cut, for the user.
    """

    blocks: tuple[int, ...]
    max_model_len: int
    notes: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What the cache is for: the model was made for `context` tokens, the user set `asked`; `rows` requests at once.

    `block_bytes`, `windows`: of each KV group. `step`: most tokens of a step. `free_memory`: bytes that are free beside
    the weights and the working memory of a step; 0 where nobody knows.

    Sizes are counted in blocks of a group without a window; a group with one has as many, or what all rows fill of it.
    """

    context: int
    asked: int | None
    rows: int
    block_size: int
    block_bytes: tuple[int, ...]
    free_memory: int
    windows: tuple[int | None, ...] = (None,)
    step: int = 1

    @property
    def length(self) -> int:
        """Tokens of the longest request there may be."""
        return self.asked or self.context

    def blocks(self, tokens: int) -> int:
        """Blocks that one request of this many tokens needs."""
        return max(most_blocks(window, tokens, self.step, self.block_size) for window in self.windows)

    def groups(self, blocks: int) -> tuple[int, ...]:
        """Blocks of each KV group where the cache has `blocks`, without the null blocks."""
        sizes = []
        for window in self.windows:
            filled = self.rows * most_blocks(window, self.length, self.step, self.block_size)
            sizes.append(blocks if window is None else min(blocks, WINDOWS_KEPT * filled))
        return tuple(sizes)

    def bytes(self, blocks: int) -> int:
        """Bytes of a cache of `blocks` blocks, with the null blocks."""
        sizes = zip(self.groups(blocks), self.block_bytes, strict=True)
        return sum((count + 1) * size for count, size in sizes)

    def mib(self, blocks: int) -> float:
        return self.bytes(blocks) / MIB

    def within(self, limit: int) -> int:
        """The largest number of blocks that takes at most `limit` bytes; -1 where not even null blocks fit."""
        return bisect_right(range(limit // min(self.block_bytes) + 1), limit, key=self.bytes) - 1


def size_cache(cache: CacheSection, demand: CacheDemand) -> CacheSize:
    """The cache's size by `num_blocks`, else by `kv_cache_memory_bytes`, else by demand, capped by free memory.

    Raises SettingError for a length beyond the model's, CapacityError (saying what would fit) for one beyond the cache
    and for a cache beyond free memory. Without a length set by the user, a small cache shortens the model's own, and
    the note says so. Without prefix caching a cache is never larger than all rows can fill; then the note says that.
    """
    if demand.asked is not None and demand.asked > demand.context:
        raise beyond(demand.asked, demand.context)
    length = demand.length
    filled = demand.rows * demand.blocks(length)
    asked = _asked(cache, demand)
    if cache.enable_prefix_caching:
        usable = min(KEPT * filled, _default(demand)) if asked is None else asked
    else:
        usable = min(filled, _default(demand) if asked is None else asked)
    if usable < 1:
        raise CapacityError(
            f"The KV cache has room for no block: one takes {least(demand.bytes(0))}, and one more is reserved.",
            f"Set kv_cache_memory_bytes to at least {least(demand.bytes(1))}"
            + (f"; {most(demand.free_memory)} are free." if demand.free_memory else "."),
        )
    if asked is not None:
        _expect_free(cache, demand, usable)
    fits, need = usable * demand.block_size, demand.blocks(length)
    blocks = tuple(count + 1 for count in demand.groups(usable))
    if usable >= need:
        return CacheSize(blocks, length, (_cut(cache, demand, usable, length),) if usable < (asked or 0) else ())
    if demand.asked is not None:
        raise CapacityError(
            f"max_model_len={length} needs {need} KV blocks ({demand.mib(need):.1f} MiB), and the cache has {usable} "
            f"({demand.mib(usable):.1f} MiB).",
            f"Set max_model_len={fits} (or auto), or kv_cache_memory_bytes to at least {least(demand.bytes(need))}.",
        )
    size = f"{demand.mib(usable):.1f} MiB"
    note = f"max_model_len is {fits} and not the model's {length}: the KV cache of {size} holds no more"
    return CacheSize(blocks, fits, (note,))


def least(size: int) -> str:
    """So many bytes for people, never less than they are."""
    return f"{math.ceil(size * 10 / MIB) / 10:.1f} MiB"


def most(size: int) -> str:
    """So many bytes for people, never more than they are."""
    return f"{size * 10 // MIB / 10:.1f} MiB"


def _asked(cache: CacheSection, demand: CacheDemand) -> int | None:
    """Blocks for tokens, without the null block, that the user set; None where nothing is set."""
    if cache.num_blocks is not None:
        return cache.num_blocks
    if cache.kv_cache_memory_bytes is not None:
        return demand.within(cache.kv_cache_memory_bytes)
    return None


def _default(demand: CacheDemand) -> int:
    cap = min(demand.free_memory // FREE_SHARE, DEFAULT_CAP) if demand.free_memory else UNKNOWN_CAP
    return demand.within(cap)


def _setting(cache: CacheSection) -> tuple[str, int | None]:
    """(name, value) of the setting that counts."""
    if cache.num_blocks is not None:
        return "num_blocks", cache.num_blocks
    return "kv_cache_memory_bytes", cache.kv_cache_memory_bytes


def _cut(cache: CacheSection, demand: CacheDemand, usable: int, length: int) -> str:
    name, value = _setting(cache)
    return (
        f"the KV cache has {usable} blocks ({demand.mib(usable):.1f} MiB), fewer than {name}={value} asks for: "
        f"max_num_seqs={demand.rows} requests of {length} tokens fill no more"
    )


def _expect_free(cache: CacheSection, demand: CacheDemand, usable: int) -> None:
    """Memory is taken only as blocks are used, so that a cache beyond what is free would fail in the midst of work."""
    free = demand.free_memory
    if not free or demand.bytes(usable) <= free:
        return
    name, value = _setting(cache)
    blocks = demand.within(free)
    fits = str(blocks) if name == "num_blocks" else most(free)
    raise CapacityError(
        f"{name}={value} takes {size_text(demand.bytes(usable))}, and {most(free)} of memory are free.",
        f"Set {name} to at most {fits}." if blocks > 0 else "Free some memory, or take a smaller model.",
    )
