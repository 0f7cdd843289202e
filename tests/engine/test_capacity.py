"""Sizes of the KV cache: by number, by bytes, by demand; cuts are said, refusals say what would fit."""

from dataclasses import replace

import pytest

from pelton.core.config import CacheSection
from pelton.core.errors import CapacityError, SettingError
from pelton.engine.capacity import MIB, CacheDemand, CacheSize, least, most, size_cache
from pelton.kv.group import first_block, most_blocks

BLOCK_BYTES = 1 << 20
GIB = 1 << 30
NONE_KEPT = CacheSection(enable_prefix_caching=False)


def demand(asked: int | None = None, rows: int = 4, free: int = 64 * GIB, context: int = 1000) -> CacheDemand:
    return CacheDemand(context, asked, rows, 32, (BLOCK_BYTES,), free)


def test_default_is_what_all_rows_need_and_thrice_as_much_for_prefixes() -> None:
    assert size_cache(NONE_KEPT, demand()) == CacheSize((4 * 32 + 1,), 1000)
    assert size_cache(NONE_KEPT, demand(asked=64)) == CacheSize((4 * 2 + 1,), 64)
    assert size_cache(CacheSection(), demand()) == CacheSize((4 * 4 * 32 + 1,), 1000)
    assert size_cache(CacheSection(), demand(asked=64)) == CacheSize((4 * 4 * 2 + 1,), 64)


@pytest.mark.parametrize("cache", [CacheSection(), NONE_KEPT])
def test_default_is_capped_by_a_fourth_of_free_memory_and_by_4_gib(cache: CacheSection) -> None:
    assert size_cache(cache, demand(free=400 << 20)).blocks == (100,)
    assert size_cache(cache, demand(rows=1000)).blocks == (4096,)
    assert size_cache(cache, demand(rows=1000, free=0)).blocks == (1024,), "unknown memory"


def test_a_small_cache_shortens_the_models_length_and_says_so() -> None:
    size = size_cache(CacheSection(num_blocks=10), demand())
    assert (size.blocks, size.max_model_len) == ((11,), 320)
    assert size.notes == ("max_model_len is 320 and not the model's 1000: the KV cache of 11.0 MiB holds no more",)


def test_bytes_hold_the_null_block_too() -> None:
    size = size_cache(CacheSection(kv_cache_memory_bytes=40 * BLOCK_BYTES + 5), demand())
    assert size == CacheSize((40,), 1000)


def test_an_asked_length_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(
        CapacityError, match=r"max_model_len=500 needs 16 KV blocks \(17.0 MiB\).*has 10 \(11.0 MiB\)"
    ) as e:
        size_cache(CacheSection(num_blocks=10), demand(asked=500))
    assert e.value.remedy == "Set max_model_len=320 (or auto), or kv_cache_memory_bytes to at least 17.0 MiB."
    assert size_cache(CacheSection(num_blocks=10), demand(asked=320)).notes == ()
    assert size_cache(CacheSection(kv_cache_memory_bytes=17 * BLOCK_BYTES), demand(asked=500)).max_model_len == 500


def test_room_for_no_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="kv_cache_memory_bytes to at least 2.0 MiB"):
        size_cache(CacheSection(kv_cache_memory_bytes=2 * BLOCK_BYTES - 1), demand())
    with pytest.raises(CapacityError, match="one takes 1.0 MiB.* at least 2.0 MiB; 0.0 MiB are free"):
        size_cache(CacheSection(), demand(free=5))
    assert size_cache(CacheSection(kv_cache_memory_bytes=2 * BLOCK_BYTES), demand()).blocks == (2,)


def test_more_than_all_rows_can_fill_is_cut_and_said() -> None:
    for section, name in (
        (replace(NONE_KEPT, num_blocks=10**7), "num_blocks=10000000"),
        (replace(NONE_KEPT, kv_cache_memory_bytes=GIB), f"kv_cache_memory_bytes={GIB}"),
    ):
        size = size_cache(section, demand())
        assert (size.blocks, size.max_model_len) == ((4 * 32 + 1,), 1000)
        assert size.notes == (
            f"the KV cache has 128 blocks (129.0 MiB), fewer than {name} asks for: "
            "max_num_seqs=4 requests of 1000 tokens fill no more",
        )
    for section in (replace(NONE_KEPT, num_blocks=128), replace(NONE_KEPT, kv_cache_memory_bytes=129 * BLOCK_BYTES)):
        assert size_cache(section, demand()) == CacheSize((129,), 1000)


def test_what_prefixes_may_fill_is_not_cut() -> None:
    assert size_cache(CacheSection(num_blocks=10**4), demand()) == CacheSize((10**4 + 1,), 1000)
    assert size_cache(CacheSection(kv_cache_memory_bytes=GIB), demand()) == CacheSize((1024,), 1000)


def test_a_cache_beyond_free_memory_is_refused_with_what_would_fit() -> None:
    free = 100 * BLOCK_BYTES + 5
    with pytest.raises(CapacityError, match=r"num_blocks=120 takes 121.0 MiB, and 100.0 MiB") as e:
        size_cache(CacheSection(num_blocks=120), demand(free=free))
    assert e.value.remedy == "Set num_blocks to at most 99."
    assert size_cache(CacheSection(num_blocks=99), demand(free=free)).blocks == (100,)
    with pytest.raises(CapacityError, match=f"kv_cache_memory_bytes={110 * BLOCK_BYTES} takes 110.0 MiB") as e:
        size_cache(CacheSection(kv_cache_memory_bytes=110 * BLOCK_BYTES), demand(free=free))
    assert e.value.remedy == "Set kv_cache_memory_bytes to at most 100.0 MiB."
    assert size_cache(CacheSection(kv_cache_memory_bytes=free), demand(free=free)).blocks == (100,)
    assert size_cache(CacheSection(num_blocks=120), demand(free=0)).blocks == (121,), "unknown memory"
    with pytest.raises(CapacityError) as e:
        size_cache(CacheSection(num_blocks=1), demand(free=BLOCK_BYTES))
    assert e.value.remedy == "Free some memory, or take a smaller model."


@pytest.mark.parametrize("size", [1, MIB, 3 * MIB // 2, 10 * MIB // 3, 24537304960])
def test_sizes_that_are_told_are_safe_to_set(size: int) -> None:
    """They are told in one unit; rounding never makes too little of a need, nor too much of what is free."""
    assert float(most(size).removesuffix(" MiB")) * MIB <= size <= float(least(size).removesuffix(" MiB")) * MIB


def test_a_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(SettingError, match="max_model_len=1001 is beyond the 1000 tokens") as e:
        size_cache(CacheSection(), demand(asked=1001))
    assert e.value.remedy == "Set at most 1000, or have its positions scaled by hf_overrides (docs/positions.md)."


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 64, 70, 500])
@pytest.mark.parametrize("step", [1, 2, 32, 33, 100])
def test_most_blocks_is_what_the_worst_place_takes(window: int, step: int) -> None:
    """The blocks that `step` tokens from some index on and all they see lie in, for every index of a long request."""
    held = [
        (start + step - 1) // 32 - first_block(window, start, 32) + 1 for start in range(2 * window + 100, 3000 - step)
    ]
    assert most_blocks(window, 3000, step, 32) == max(held)
    assert most_blocks(window, 40, step, 32) <= 2 and most_blocks(None, 3000, step, 32) == 94


def mixed(asked: int | None = None, window: int = 100, free: int = 64 * GIB) -> CacheDemand:
    """Blocks of 1 MiB without and of 4 MiB with a window."""
    return CacheDemand(32_000, asked, 4, 32, (4 * MIB, MIB), free, (window, None), 64)


def test_a_group_with_a_window_has_what_all_rows_fill_of_it() -> None:
    size = size_cache(CacheSection(num_blocks=2000), mixed())
    most = (99 + 64 + 30) // 32 + 1
    assert size == CacheSize((2 * 4 * most + 1, 2001), 32_000)
    assert size_cache(CacheSection(num_blocks=10), mixed()).blocks == (11, 11)


def test_bytes_are_divided_so_that_all_groups_fit() -> None:
    given = 1500 * MIB
    size = size_cache(CacheSection(kv_cache_memory_bytes=given), mixed(asked=20_000))
    windows, full = size.blocks
    assert windows == 57 and 4 * windows + full == 1500
    small = size_cache(CacheSection(kv_cache_memory_bytes=50 * MIB), mixed())
    assert small.blocks == (10, 10) and small.max_model_len == 9 * 32
    with pytest.raises(CapacityError, match="one takes 5.0 MiB"):
        size_cache(CacheSection(kv_cache_memory_bytes=9 * MIB), mixed())


def test_with_windows_alone_any_length_needs_the_same() -> None:
    demand = CacheDemand(32_000, None, 4, 32, (MIB,), 64 * GIB, (100,), 64)
    assert size_cache(CacheSection(num_blocks=7), demand) == CacheSize((8,), 32_000)
    assert size_cache(CacheSection(num_blocks=6), demand).max_model_len == 6 * 32
