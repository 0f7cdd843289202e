"""Settings in sections: each part of the engine is handed its own section and nothing else.

Validated here, never changed later. Names of techniques are looked up by whoever starts them; settings of other
engines stand in words/elsewhere.py.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pelton.core.errors import SettingError
from pelton.core.params import MAX_SEED, real, whole
from pelton.core.words.elsewhere import ELSEWHERE as ELSEWHERE
from pelton.core.words.elsewhere import nearest as nearest
from pelton.core.words.elsewhere import why_not as why_not

DTYPES = ("auto", "bfloat16", "float32")
LINEAR_FORMS = ("codes", "values")
ACTIVATIONS = ("auto", "int8")
GENERATION = ("auto", "none", "vllm")
PREEMPTION = ("auto", "recompute", "swap")
BLOCK_TOKENS = 32
MOST_THREADS = 1024
MOST_SEQS = 1 << 16  # arrays of the runner have a line for each
MOST_TOKENS = 1 << 20  # of one step; its memory is proportional
MOST_CONTEXT_COST = 1.0
MOST_STEPS = 8  # of one call
MOST_TARGET_MS = 60_000
ITL_TARGET_MS = 100  # about the longest delay that people do not notice as one (Miller 1968)
PACKED_CACHE_BYTES = 16 << 30
SESSION_SECONDS = 600
# JSON as text; Python may give the table itself.
TABLES = ("override_generation_config", "hf_overrides", "fairness_weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """Which model and in which arithmetic. dtype auto and bfloat16: matrix inputs and KV in bf16, sums in fp32.

    `max_model_len` None: the model's own, or as much of it as the KV memory holds, of which a note is made ("auto" and
    -1 say the same).
    `generation_config`: "auto" takes the model's recommendations for sampling, "none" (or "vllm") ignores them;
    `override_generation_config` is a JSON table of fields that win over them. `hf_overrides`: a JSON table of fields
    that win over the model's config. `quantization`: how dense matrices are quantised while they are loaded (a
    technique's name and options; None: not at all). `linear_form`: how quantised ones are multiplied, as codes with
    scales on the sums or as values made of them.
    `activations`: what goes into products with quantised matrices, "auto" by dtype, "int8" rounded to 8 bits.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    chat_template: str | None = None
    generation_config: str = "auto"
    override_generation_config: str | None = None
    hf_overrides: str | None = None
    quantization: str | None = None
    linear_form: str = "codes"
    activations: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSection:
    """How a model is fetched that is named and not here. None: what the variables of the Hub say (HF_TOKEN,
    HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME), else the Hub's own.

    `revision`: a branch, tag or commit of a repository of the Hub. `hf_endpoint`: the address of the Hub or of a
    mirror. `offline`: only what is there already. `download_dir`: the folder for what is fetched. `accept_terms`: those
    that a model comes under are agreed to.
    """

    revision: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    hf_endpoint: str | None = None
    offline: bool = False
    download_dir: str | None = None
    accept_terms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSection:
    """KV memory. `kv_cache_memory_bytes` None (and no `num_blocks`, which says the same in blocks): the least of four
    times what max_num_seqs requests of full length fill (once without prefix caching), a fourth of the free memory, and
    4 GiB.

    `kv_codec`: how keys and values are stored. `enable_prefix_caching`: blocks of requests that are over stay for those
    that begin alike; `prefix_cache_tokens` caps what is kept so (None: all the memory that nobody else needs).
    `partial_prefix_blocks`: a prompt may also begin in the midst of a block, with a copy of one that begins alike.
    `session_seconds`: how long the blocks of a request with a session_id are held after it is over; 0: not at all.
    `swap_space_bytes`: host memory in which preempted requests wait (None: the least of what the KV cache takes, an
    eighth of the free memory, and 4 GiB). `preemption_mode`: "recompute" what a preempted request had, "swap" it, or
    "auto". `kv_disk_bytes` of evicted prefixes are kept in files, in `kv_disk_folder` (None: the cache folder).
    """

    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = BLOCK_TOKENS
    kv_codec: str = "plain"
    enable_prefix_caching: bool = True
    prefix_cache_tokens: int | None = None
    partial_prefix_blocks: bool = True
    session_seconds: int = SESSION_SECONDS
    swap_space_bytes: int | None = None
    preemption_mode: str = "auto"
    kv_disk_bytes: int = 0
    kv_disk_folder: str | None = None

    @property
    def no_sessions(self) -> str:
        """Why nothing is ever held for a session; "" where it is."""
        if not self.enable_prefix_caching:
            return "enable_prefix_caching is off"
        return "" if self.session_seconds else "session_seconds is 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    """How many requests and tokens share a step. `max_num_queued_reqs`: most that may wait; 0: any number.

    `context_cost`: what attending to one earlier token costs, in work of a token that has none. A prompt's tokens count
    so much more towards max_num_batched_tokens the further in they are, so that a step takes no longer for standing in
    a long prompt. None: by the model's own arithmetic; 0: tokens count alike.
    `max_steps_per_call`: tokens that each answer may get in one call of the backend, where nothing has to be decided in
    between; they are told together. 1: each step by itself. `planning_depth` 2: a step is planned while another runs.
    `itl_target_ms`: how long a step with prompts in it should take at most, by which max_num_batched_tokens is chosen
    where it is not set (docs/serve.md); 0: no target. None: ITL_TARGET_MS, unless max_num_batched_tokens is set.
    `fairness_weights`: a JSON table of users or API keys and how many times the share of others they get.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    long_prefill_token_threshold: int = 0
    max_num_queued_reqs: int = 0
    context_cost: float | None = None
    scheduling_policy: str = "fcfs"
    max_steps_per_call: int = MOST_STEPS
    planning_depth: int = 1
    itl_target_ms: int | None = None
    fairness_weights: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSection:
    """Where the Program runs. threads 0: as many as the process may use.

    `packed_cache_bytes`: how much room on the disk packed weights of all models may take, so that a second start need
    not pack them again; 0: none.
    """

    backend: str = "cpu"
    threads: int = 0
    packed_cache_bytes: int = PACKED_CACHE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All sections.

    `seed` makes the seeds that are drawn for requests without one repeatable; None: from the system.
    """

    model: ModelSection
    fetch: FetchSection = field(default_factory=FetchSection)
    cache: CacheSection = field(default_factory=CacheSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    backend: BackendSection = field(default_factory=BackendSection)
    seed: int | None = None


def resolve(model: str | os.PathLike[str], settings: dict[str, object]) -> EngineConfig:
    """EngineConfig from flat settings by their vLLM names; unknown names and impossible values raise SettingError."""
    sections = {
        "model": ModelSection,
        "fetch": FetchSection,
        "cache": CacheSection,
        "schedule": ScheduleSection,
        "backend": BackendSection,
    }
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
            raise _unknown(name, [*kinds, "seed"])
    _choose_step(grouped["schedule"])
    built = {name: kind(**grouped[name]) for name, kind in sections.items()}
    config = EngineConfig(**built, seed=seed)  # type: ignore[arg-type]
    _check(config)
    return config


def _choose_step(schedule: dict[str, object]) -> None:
    """A target for the gaps between tokens chooses the size of a step, unless that is set."""
    target = schedule.get("itl_target_ms")
    if "max_num_batched_tokens" not in schedule:
        schedule["itl_target_ms"] = ITL_TARGET_MS if target is None else target
    elif target:
        size = schedule["max_num_batched_tokens"]
        raise SettingError(
            f"max_num_batched_tokens={size} and itl_target_ms={target} both say how large a step is.",
            "Give one of them.",
        )


def _unknown(name: str, known: list[str]) -> SettingError:
    if name in ELSEWHERE:
        reason, ours = why_not(name)
        remedy = f"What is there for it: {ours}." if ours else "Leave it out."
        return SettingError(f"{name} is not supported here: {reason}.", remedy)
    near = nearest(name, known)
    hint = f"Did you mean {near!r}?" if near else f"There are: {', '.join(known)}."
    return SettingError(f"Unknown setting {name!r}.", hint)


def _typed(name: str, value: object, kind: object) -> object:
    """The value as its field has it (other libraries' whole numbers, paths as text); SettingError if it cannot be."""
    if value is None and kind in (int | None, str | None, float | None):
        return None
    if name == "max_model_len" and value in ("auto", -1, "-1"):
        return None
    if kind == float | None:
        share = real(value)
        if share is None or not 0 <= share <= MOST_CONTEXT_COST:
            raise SettingError(f"{name}={value!r} cannot work.", f"It must be from 0 to {MOST_CONTEXT_COST:g}.")
        return share
    if kind is bool:
        if not isinstance(value, bool):
            raise SettingError(f"{name}={value!r} cannot work.", "It must be True or False.")
        return value
    if kind in (int, int | None):
        number = whole(value)
        if number is None:
            raise SettingError(f"{name}={value!r} cannot work.", "It must be a whole number.")
        return number
    return _text(name, value, may_miss=kind == str | None)


def _text(name: str, value: object, *, may_miss: bool) -> str:
    if name in TABLES and isinstance(value, Mapping):
        try:
            return json.dumps(value)
        except (TypeError, ValueError) as error:
            raise SettingError(f"{name}={value!r} cannot work.", "It must hold what JSON can.") from error
    # A path to a template would be taken for the template.
    text = os.fspath(value) if isinstance(value, os.PathLike) and name != "chat_template" else value
    if not isinstance(text, str):
        raise SettingError(f"{name}={value!r} cannot work.", "It must be text.")
    if may_miss and not text.strip():  # as a variable is that nobody has set
        raise SettingError(f"{name} is empty.", "Give it a value, or leave it out.")
    return text


def _check_fetch(fetch: FetchSection) -> None:
    """Refuses what is no address."""
    if fetch.hf_endpoint is not None and not fetch.hf_endpoint.startswith(("http://", "https://")):
        raise SettingError(f"hf_endpoint={fetch.hf_endpoint!r} cannot work.", "It must begin with http:// or https://.")


def _check_activations(model: ModelSection) -> None:
    if model.activations not in ACTIVATIONS:
        raise SettingError(f"activations={model.activations!r} cannot work.", f"It must be {' or '.join(ACTIVATIONS)}.")
    for name, value, meaning in (("dtype", "float32", "keeps them exact"), ("linear_form", "values", "has no codes")):
        if model.activations != "auto" and value == (model.dtype if name == "dtype" else model.linear_form):
            raise SettingError(
                f"activations={model.activations!r} and {name}={value!r} cannot work together: the one multiplies "
                f"activations of 8 bits with integer codes, the other {meaning}.",
                "Leave one of them out.",
            )


def _check_company(cache: CacheSection) -> None:
    """Refuses what would have no effect beside another setting."""
    if cache.kv_disk_folder is not None and not cache.kv_disk_bytes:
        raise SettingError(
            f"kv_disk_folder={cache.kv_disk_folder!r} would have no effect: kv_disk_bytes is 0.",
            "Set kv_disk_bytes to the size that the files may have, or leave kv_disk_folder out.",
        )
    for found, one, other, why in (
        (
            cache.kv_disk_bytes > 0 and not cache.enable_prefix_caching,
            f"kv_disk_bytes={cache.kv_disk_bytes}",
            "enable_prefix_caching=False",
            "what goes to the disk are prefixes, and none are kept",
        ),
        (
            bool(cache.prefix_cache_tokens) and not cache.enable_prefix_caching,
            f"prefix_cache_tokens={cache.prefix_cache_tokens}",
            "enable_prefix_caching=False",
            "no prefixes are kept",
        ),
        (
            cache.session_seconds not in (0, SESSION_SECONDS) and not cache.enable_prefix_caching,
            f"session_seconds={cache.session_seconds}",
            "enable_prefix_caching=False",
            "what sessions hold are prefixes, and none are kept",
        ),
        (
            cache.preemption_mode == "swap" and cache.swap_space_bytes == 0,
            "preemption_mode='swap'",
            "swap_space_bytes=0",
            "there is no memory to swap to",
        ),
        (
            cache.preemption_mode == "recompute" and bool(cache.swap_space_bytes),
            "preemption_mode='recompute'",
            f"swap_space_bytes={cache.swap_space_bytes}",
            "nothing is ever swapped",
        ),
    ):
        if found:
            raise SettingError(f"{one} and {other} cannot work together: {why}.", "Leave one of them out.")


def _check(config: EngineConfig) -> None:
    def need(good: bool, name: str, value: object, what: str) -> None:
        if not good:
            raise SettingError(f"{name}={value!r} cannot work.", f"It must be {what}.")

    def between(name: str, value: int | None, least: int, most: int | None, hint: str = "") -> None:
        good = value is None or (value >= least and (most is None or value <= most))
        need(good, name, value, (f"at least {least}" if most is None else f"from {least} to {most}") + hint)

    model, cache, schedule = config.model, config.cache, config.schedule
    need(model.dtype in DTYPES, "dtype", model.dtype, "one of " + ", ".join(DTYPES))
    need(model.linear_form in LINEAR_FORMS, "linear_form", model.linear_form, " or ".join(LINEAR_FORMS))
    _check_activations(model)
    _check_fetch(config.fetch)
    between("max_model_len", model.max_model_len, 1, None)
    need(model.generation_config in GENERATION, "generation_config", model.generation_config, ", ".join(GENERATION))
    between("kv_cache_memory_bytes", cache.kv_cache_memory_bytes, 1, None)
    between("num_blocks", cache.num_blocks, 1, None)
    if cache.kv_cache_memory_bytes is not None and cache.num_blocks is not None:
        raise SettingError(
            f"kv_cache_memory_bytes={cache.kv_cache_memory_bytes} and num_blocks={cache.num_blocks} both say how large "
            "the KV cache is.",
            "Give one of them.",
        )
    between("prefix_cache_tokens", cache.prefix_cache_tokens, 0, None)
    need(
        cache.prefix_cache_tokens is None or not 0 < cache.prefix_cache_tokens < cache.block_size,
        "prefix_cache_tokens",
        cache.prefix_cache_tokens,
        f"at least one block of {cache.block_size}, or 0: only what sessions hold is kept then",
    )
    between("session_seconds", cache.session_seconds, 0, None, " (0: off)")
    between("swap_space_bytes", cache.swap_space_bytes, 0, None, " (0: none)")
    need(cache.preemption_mode in PREEMPTION, "preemption_mode", cache.preemption_mode, ", ".join(PREEMPTION))
    between("kv_disk_bytes", cache.kv_disk_bytes, 0, None, " (0: none)")
    _check_company(cache)
    size = cache.block_size
    need(size == BLOCK_TOKENS, "block_size", size, f"{BLOCK_TOKENS}: the CPU kernels' tile layout fixes it")
    between("max_num_seqs", schedule.max_num_seqs, 1, MOST_SEQS)
    between("max_num_batched_tokens", schedule.max_num_batched_tokens, 1, MOST_TOKENS)
    between("long_prefill_token_threshold", schedule.long_prefill_token_threshold, 0, None, " (0: off)")
    between("max_num_queued_reqs", schedule.max_num_queued_reqs, 0, None, " (0: any)")
    between("itl_target_ms", schedule.itl_target_ms, 0, MOST_TARGET_MS, " (0: none)")
    between("max_steps_per_call", schedule.max_steps_per_call, 1, MOST_STEPS, " (1: off)")
    between("planning_depth", schedule.planning_depth, 1, 2, " (1: a step is planned when the one before is over)")
    between("seed", config.seed, 0, MAX_SEED)
    between("packed_cache_bytes", config.backend.packed_cache_bytes, 0, None, " (0: nothing is kept)")
    between("threads", config.backend.threads, 0, MOST_THREADS, " (0: all allowed cores)")
