"""How many host slots there are for blocks that wait beside the KV cache: arithmetic on sizes, no allocation.

Invariant: the slots of a group are to those of another as their blocks are, but for what files need at least.
"""

from collections.abc import Sequence

from pelton.core.config import CacheSection
from pelton.core.errors import CapacityError
from pelton.engine.capacity import CacheDemand, CacheSize, least, most

FREE_SHARE = 8  # by default at most an eighth of what is free
DEFAULT_CAP = 4 << 30  # and at most this many bytes
UNKNOWN_CAP = 1 << 30  # or this many where a backend does not tell its free memory
CARRIED = 128  # of each group at least, where blocks go to files and come from there, or as many as there are blocks


def host_slots(cache: CacheSection, size: CacheSize, demand: CacheDemand) -> tuple[int, ...]:
    """Slots of each KV group; CapacityError for a swap_space_bytes beyond what is free, or below a block of each.

    Preempted requests have at most swap_space_bytes of them (see Swap), also where files need more.
    """
    room, whole = _room(cache, size.blocks, demand)
    carried = CARRIED if cache.kv_disk_bytes and cache.enable_prefix_caching else 0
    return tuple(max((count - 1) * room // whole, min(count - 1, carried)) for count in size.blocks)


def host_use(cache: CacheSection) -> str:
    """What the slots are for, for people: behind "blocks of"."""
    swaps = cache.preemption_mode != "recompute" and cache.swap_space_bytes != 0
    used = {"preempted requests": swaps, "prefixes on their way to files and back": cache.kv_disk_bytes > 0}
    return ", and of ".join(what for what, there in used.items() if there)


def _room(cache: CacheSection, blocks: Sequence[int], demand: CacheDemand) -> tuple[int, int]:
    """Bytes for slots, and those of as many slots as there are blocks."""
    whole = sum((count - 1) * each for count, each in zip(blocks, demand.block_bytes, strict=True))
    left = max(0, demand.free_memory - whole)
    asked = cache.swap_space_bytes
    if asked is not None:
        if demand.free_memory and asked > left:
            raise CapacityError(
                f"swap_space_bytes={asked} is more than the {most(left)} of memory that are free beside the KV cache.",
                f"Set swap_space_bytes to at most {most(left)}, or kv_cache_memory_bytes smaller.",
            )
        # So that each group has a slot.
        needed = -(-whole // (min(blocks) - 1))
        if 0 < asked < needed:
            raise CapacityError(
                f"swap_space_bytes={asked} has no room for a block of each KV group.",
                f"Set swap_space_bytes to at least {least(needed)}, or to 0.",
            )
        return asked, whole
    if cache.preemption_mode == "recompute":
        return 0, whole
    cap = min(left // FREE_SHARE, DEFAULT_CAP) if demand.free_memory else UNKNOWN_CAP
    return min(whole, cap), whole
