"""Settings: types, ranges and names, refused as SettingErrors that name the setting and its value."""

from pathlib import Path

import numpy as np
import pytest

from pelton.core.config import MOST_THREADS, resolve
from pelton.core.errors import SettingError
from pelton.core.params import MAX_SEED

REFUSED: list[tuple[str, object, str]] = [
    ("max_num_seqs", "4", "whole number"),
    ("max_num_seqs", True, "whole number"),
    ("max_num_seqs", None, "whole number"),
    ("max_num_seqs", 0, "from 1 to"),
    ("max_num_seqs", 10**12, "from 1 to"),
    ("max_num_batched_tokens", 10.5, "whole number"),
    ("max_num_batched_tokens", np.float64(8), "whole number"),
    ("max_num_batched_tokens", -1, "from 1 to"),
    ("context_cost", "much", "from 0 to 1"),
    ("context_cost", True, "from 0 to 1"),
    ("context_cost", float("nan"), "from 0 to 1"),
    ("context_cost", -0.1, "from 0 to 1"),
    ("max_model_len", "long", "whole number"),
    ("max_model_len", 0, "at least 1"),
    ("kv_cache_memory_bytes", "1G", "whole number"),
    ("kv_cache_memory_bytes", -5, "at least 1"),
    ("num_blocks", -3, "at least 1"),
    ("num_blocks", 0, "at least 1"),
    ("num_blocks", False, "whole number"),
    ("block_size", 16, "32"),
    ("kv_codec", None, "text"),
    ("long_prefill_token_threshold", -1, "0: off"),
    ("enable_prefix_caching", 1, "True or False"),
    ("enable_prefix_caching", None, "True or False"),
    ("prefix_cache_tokens", -1, "at least 0"),
    ("prefix_cache_tokens", True, "whole number"),
    ("swap_space_bytes", -1, "0: none"),
    ("preemption_mode", "never", "auto, recompute, swap"),
    ("kv_disk_bytes", -1, "0: none"),
    ("kv_disk_bytes", None, "whole number"),
    ("kv_disk_folder", 3, "text"),
    ("max_num_queued_reqs", -1, "at least 0 (0: any)"),
    ("max_model_len", -2, "at least 1"),
    ("max_model_len", "AUTO", "whole number"),
    ("generation_config", "model", "auto, none, vllm"),
    ("generation_config", None, "text"),
    ("override_generation_config", ["top_p"], "text"),
    ("threads", 1.5, "whole number"),
    ("threads", -1, "0: all allowed cores"),
    ("threads", 100_000, f"from 0 to {MOST_THREADS}"),
    ("dtype", "int8", "one of"),
    ("dtype", 8, "text"),
    ("backend", 3, "text"),
    ("scheduling_policy", ["fcfs"], "text"),
    ("tokenizer", 7, "text"),
    ("seed", "x", "whole number"),
    ("seed", True, "whole number"),
    ("seed", 1.5, "whole number"),
    ("seed", -1, f"from 0 to {MAX_SEED}"),
    ("seed", 2**64, f"from 0 to {MAX_SEED}"),
    ("chat_template", 5, "text"),
    ("chat_template", Path("template.jinja"), "text"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_impossible_values_are_named(name: str, value: object, words: str) -> None:
    with pytest.raises(SettingError) as refusal:
        resolve("m", {name: value})
    assert refusal.value.cause == f"{name}={value!r} cannot work."
    assert words in refusal.value.remedy


@pytest.mark.parametrize(
    "name", ["kv_disk_folder", "tokenizer", "chat_template", "revision", "hf_token", "hf_overrides"]
)
@pytest.mark.parametrize("value", ["", " \n"])
def test_empty_text_is_no_value(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is empty"):
        resolve("m", {name: value, "kv_disk_bytes": 1 << 30})


def test_a_folder_of_files_needs_their_size() -> None:
    assert resolve("m", {"kv_disk_folder": "/kv", "kv_disk_bytes": 1}).cache.kv_disk_folder == "/kv"
    with pytest.raises(SettingError, match=r"kv_disk_folder='/kv' would have no effect: kv_disk_bytes is 0"):
        resolve("m", {"kv_disk_folder": "/kv"})


def test_a_model_is_text_or_a_path() -> None:
    assert resolve(Path("a/b"), {"tokenizer": Path("c")}).model.model == "a/b"
    with pytest.raises(SettingError, match="model=5"):
        resolve(5, {})  # type: ignore[arg-type]


def test_numbers_of_other_libraries_are_numbers() -> None:
    config = resolve(
        "m", {"max_num_seqs": np.int64(4), "threads": np.uint8(2), "seed": np.int32(7), "num_blocks": None}
    )
    assert (config.schedule.max_num_seqs, config.backend.threads, config.seed) == (4, 2, 7)
    assert type(config.schedule.max_num_seqs) is type(config.seed) is int
    assert config.cache.num_blocks is None


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"Unknown setting 'sed'\. Did you mean 'seed'"):
        resolve("m", {"sed": 1})


@pytest.mark.parametrize("value", ["auto", -1, "-1", None])
def test_a_length_may_be_left_to_the_engine(value: object) -> None:
    assert resolve("m", {"max_model_len": value}).model.max_model_len is None


def test_caching_is_on_and_can_be_capped_or_off() -> None:
    cache = resolve("m", {}).cache
    assert cache.enable_prefix_caching and cache.prefix_cache_tokens is None
    cache = resolve("m", {"enable_prefix_caching": False, "prefix_cache_tokens": 0}).cache
    assert not cache.enable_prefix_caching and cache.prefix_cache_tokens == 0
    assert resolve("m", {"max_num_queued_reqs": 0}).schedule.max_num_queued_reqs == 0


def test_a_cap_below_a_block_would_keep_nothing() -> None:
    for tokens in (0, 32, 33, None):
        assert resolve("m", {"prefix_cache_tokens": tokens}).cache.prefix_cache_tokens == tokens
    for tokens in (1, 31):
        with pytest.raises(SettingError, match=rf"prefix_cache_tokens={tokens} cannot work\. .* least one block of 32"):
            resolve("m", {"prefix_cache_tokens": tokens})


def test_the_cost_of_context_is_the_models_unless_set() -> None:
    assert resolve("m", {}).schedule.context_cost is None
    assert resolve("m", {"context_cost": None}).schedule.context_cost is None
    assert resolve("m", {"context_cost": 0}).schedule.context_cost == 0.0
    assert resolve("m", {"context_cost": np.float32(0.5)}).schedule.context_cost == 0.5


TOGETHER = [
    ({"kv_disk_bytes": 1 << 30, "enable_prefix_caching": False}, "kv_disk_bytes=1073741824", "none are kept"),
    (
        {"prefix_cache_tokens": 64, "enable_prefix_caching": False},
        "enable_prefix_caching=False",
        "no prefixes are kept",
    ),
    ({"session_seconds": 60, "enable_prefix_caching": False}, "session_seconds=60", "none are kept"),
    ({"preemption_mode": "swap", "swap_space_bytes": 0}, "swap_space_bytes=0", "no memory to swap to"),
    ({"preemption_mode": "recompute", "swap_space_bytes": 5}, "preemption_mode='recompute'", "nothing is ever swapped"),
]


@pytest.mark.parametrize(("settings", "named", "why"), TOGETHER)
def test_what_would_have_no_effect_beside_another_is_refused(settings: dict[str, object], named: str, why: str) -> None:
    with pytest.raises(SettingError) as refusal:
        resolve("m", settings)
    assert named in refusal.value.cause and why in refusal.value.cause
    assert all(f"{name}=" in refusal.value.cause for name in settings)
    for name, value in settings.items():
        resolve("m", {name: value})


@pytest.mark.parametrize("space", [None, 0, 1 << 30])
@pytest.mark.parametrize("mode", ["auto", "recompute", "swap"])
def test_the_rest_may_stand_together(space: int | None, mode: str) -> None:
    if (mode, space) in (("swap", 0), ("recompute", 1 << 30)):
        return
    cache = resolve("m", {"preemption_mode": mode, "swap_space_bytes": space, "prefix_cache_tokens": 64}).cache
    assert (cache.preemption_mode, cache.swap_space_bytes, cache.kv_disk_bytes) == (mode, space, 0)
