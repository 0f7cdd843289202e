"""Settings in sections: each part of the engine is handed its own section and nothing else.

Validated here, never changed later. Names of techniques are looked up by whoever starts them.
"""

import os
from dataclasses import dataclass, field, fields
from difflib import get_close_matches

from pelton.core.errors import SettingError
from pelton.core.params import MAX_SEED, whole

DTYPES = ("auto", "bfloat16", "float32")
GENERATION = ("auto", "none", "vllm")
BLOCK_TOKENS = 32
MOST_THREADS = 1024
MOST_SEQS = 1 << 16  # arrays of the runner have a line for each
MOST_TOKENS = 1 << 20  # of one step; its memory is proportional


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """Which model and in which arithmetic. dtype auto and bfloat16: matrix inputs and KV in bf16, sums in fp32.

    `max_model_len` None: the model's own, or as much of it as the KV memory holds ("auto" and -1 say the same).
    `generation_config`: "auto" takes the model's recommendations for sampling, "none" (or "vllm") ignores them;
    `override_generation_config` is a JSON table of fields that win over them.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    chat_template: str | None = None
    generation_config: str = "auto"
    override_generation_config: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSection:
    """KV memory. `kv_cache_memory_bytes` None: chosen from max_num_seqs, the context length and free memory.

    `kv_codec`: how keys and values are stored. `enable_prefix_caching`: blocks of requests that are over stay for those
    that begin alike; `prefix_cache_tokens` caps what is kept so (None: all the memory that nobody else needs).
    """

    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = BLOCK_TOKENS
    kv_codec: str = "plain"
    enable_prefix_caching: bool = True
    prefix_cache_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    """How many requests and tokens share a step. `max_num_queued_reqs`: most that may wait; 0: any number."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    long_prefill_token_threshold: int = 0
    max_num_queued_reqs: int = 0
    scheduling_policy: str = "fcfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSection:
    """Where the Program runs. threads 0: as many as the process may use."""

    backend: str = "cpu"
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All sections.

    `seed` makes the seeds that are drawn for requests without one repeatable; None: from the system.
    """

    model: ModelSection
    cache: CacheSection = field(default_factory=CacheSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    backend: BackendSection = field(default_factory=BackendSection)
    seed: int | None = None


def resolve(model: str | os.PathLike[str], settings: dict[str, object]) -> EngineConfig:
    """EngineConfig from flat settings by their vLLM names; unknown names and impossible values raise SettingError."""
    sections = {"model": ModelSection, "cache": CacheSection, "schedule": ScheduleSection, "backend": BackendSection}
    kinds = {f.name: (section, f.type) for section, kind in sections.items() for f in fields(kind) if f.name != "model"}
    grouped: dict[str, dict[str, object]] = {name: {} for name in sections}
    grouped["model"]["model"] = _typed("model", model, str)
    seed: object = None
    for name, value in settings.items():
        if name == "seed":
            seed = _typed(name, value, int | None)
        elif name in kinds:
            section, kind = kinds[name]
            grouped[section][name] = _typed(name, value, kind)
        else:
            near = get_close_matches(name, [*kinds, "seed"], n=1)
            raise SettingError(
                f"Unknown setting {name!r}.", f"Did you mean {near[0]!r}?" if near else "See the documentation."
            )
    built = {name: kind(**grouped[name]) for name, kind in sections.items()}
    config = EngineConfig(**built, seed=seed)  # type: ignore[arg-type]
    _check(config)
    return config


def _typed(name: str, value: object, kind: object) -> object:
    """The value as its field has it (other libraries' whole numbers, paths as text); SettingError if it cannot be."""
    if value is None and kind in (int | None, str | None):
        return None
    if name == "max_model_len" and value in ("auto", -1, "-1"):
        return None
    if kind is bool:
        if not isinstance(value, bool):
            raise SettingError(f"{name}={value!r} cannot work.", "It must be True or False.")
        return value
    if kind in (int, int | None):
        number = whole(value)
        if number is None:
            raise SettingError(f"{name}={value!r} cannot work.", "It must be a whole number.")
        return number
    # A path to a template would be taken for the template.
    text = os.fspath(value) if isinstance(value, os.PathLike) and name != "chat_template" else value
    if not isinstance(text, str):
        raise SettingError(f"{name}={value!r} cannot work.", "It must be text.")
    return text


def _check(config: EngineConfig) -> None:
    def need(good: bool, name: str, value: object, what: str) -> None:
        if not good:
            raise SettingError(f"{name}={value!r} cannot work.", f"It must be {what}.")

    def between(name: str, value: int | None, least: int, most: int | None, hint: str = "") -> None:
        good = value is None or (value >= least and (most is None or value <= most))
        need(good, name, value, (f"at least {least}" if most is None else f"from {least} to {most}") + hint)

    model, cache, schedule = config.model, config.cache, config.schedule
    need(model.dtype in DTYPES, "dtype", model.dtype, "one of " + ", ".join(DTYPES))
    between("max_model_len", model.max_model_len, 1, None)
    need(model.generation_config in GENERATION, "generation_config", model.generation_config, ", ".join(GENERATION))
    between("kv_cache_memory_bytes", cache.kv_cache_memory_bytes, 1, None)
    between("num_blocks", cache.num_blocks, 1, None)
    between("prefix_cache_tokens", cache.prefix_cache_tokens, 0, None)
    size = cache.block_size
    need(size == BLOCK_TOKENS, "block_size", size, f"{BLOCK_TOKENS}: the CPU kernels' tile layout fixes it")
    between("max_num_seqs", schedule.max_num_seqs, 1, MOST_SEQS)
    between("max_num_batched_tokens", schedule.max_num_batched_tokens, 1, MOST_TOKENS)
    between("long_prefill_token_threshold", schedule.long_prefill_token_threshold, 0, None, " (0: off)")
    between("max_num_queued_reqs", schedule.max_num_queued_reqs, 0, None, " (0: any)")
    between("seed", config.seed, 0, MAX_SEED)
    between("threads", config.backend.threads, 0, MOST_THREADS, " (0: all allowed cores)")
