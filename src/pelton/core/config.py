"""Settings in sections: each part of the engine is handed its own section and nothing else.

Validated here, never changed later.
"""

from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches

from pelton.core.errors import SettingError

DTYPES = ("auto", "bfloat16", "float32")
BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """Which model and in which arithmetic. dtype auto and bfloat16: matrix inputs and KV in bf16, sums in fp32."""

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSection:
    """KV memory. `kv_cache_memory_bytes` None: chosen from max_num_seqs, the context length and free memory."""

    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    """How many requests and tokens share a step."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    long_prefill_token_threshold: int = 0
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


def resolve(model: str, settings: dict[str, object]) -> EngineConfig:
    """EngineConfig from flat settings by their vLLM names; unknown names and impossible values raise SettingError."""
    sections = {"model": ModelSection, "cache": CacheSection, "schedule": ScheduleSection, "backend": BackendSection}
    owner = {f.name: section for section, kind in sections.items() for f in fields(kind) if f.name != "model"}
    grouped: dict[str, dict[str, object]] = {name: {} for name in sections}
    seed = settings.get("seed")
    for name, value in settings.items():
        if name == "seed":
            continue
        if name not in owner:
            near = get_close_matches(name, [*owner, "seed"], n=1)
            raise SettingError(
                f"Unknown setting {name!r}.", f"Did you mean {near[0]!r}?" if near else "See the documentation."
            )
        grouped[owner[name]][name] = value
    built = {
        name: kind(**({"model": model} if name == "model" else {}), **grouped[name]) for name, kind in sections.items()
    }
    config = EngineConfig(**built, seed=seed)  # type: ignore[arg-type]
    _check(config)
    return config


def _check(config: EngineConfig) -> None:
    def need(good: bool, name: str, value: object, what: str) -> None:
        if not good:
            raise SettingError(f"{name}={value!r} cannot work.", f"It must be {what}.")

    need(config.model.dtype in DTYPES, "dtype", config.model.dtype, "one of " + ", ".join(DTYPES))
    length = config.model.max_model_len
    need(length is None or length >= 1, "max_model_len", length, "at least 1")
    size = config.cache.block_size
    need(size == BLOCK_TOKENS, "block_size", size, f"{BLOCK_TOKENS}: the CPU kernels' tile layout fixes it")
    need(config.schedule.max_num_seqs >= 1, "max_num_seqs", config.schedule.max_num_seqs, "at least 1")
    budget = config.schedule.max_num_batched_tokens
    need(budget >= 1, "max_num_batched_tokens", budget, "at least 1")
    need(config.schedule.long_prefill_token_threshold >= 0, "long_prefill_token_threshold",
         config.schedule.long_prefill_token_threshold, "0 (off) or more")  # fmt: skip
    need(config.backend.threads >= 0, "threads", config.backend.threads, "0 (all allowed cores) or more")


def with_model(config: EngineConfig, **changes: object) -> EngineConfig:
    """A copy with changed fields of the model section."""
    return replace(config, model=replace(config.model, **changes))  # type: ignore[arg-type]
