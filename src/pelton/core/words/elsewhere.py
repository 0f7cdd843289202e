"""Settings of other engines that are not here: why, and what is there for the same purpose; and slips of the fingers.

It knows names alone. Invariant: a name has one reason.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

LIKE = 0.75  # names at least so much alike (difflib's ratio) are taken for a slip of the fingers

# Settings of other engines (by vLLM's names, where it has them) that are not here, by the reason why.
_REASONS: Mapping[str, str] = {
    "this version runs on one machine, with one process that computes": (
        "tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel enable_eplb "
        "distributed_executor_backend kv_transfer_config kv_events_config"
    ),
    "one process answers HTTP, and it is not what limits the speed": "api_server_count threads_http",
    "this version computes on the CPU alone": (
        "device n_gpu_layers gpu_layers cpu_offload_gb enforce_eager compilation_config cudagraph_capture_sizes "
        "optimization_level performance_mode attention_backend kv_offloading_backend "
        "no_kv_offload"
    ),
    "a tokenizer of its own is taken as its repository has it now; a folder may hold another": "tokenizer_revision",
    "the model's files say it themselves": (
        "load_format config_format hf_config_path tokenizer_mode runner convert model_impl pooler_config"
    ),
    "no code of a model is ever run": "trust_remote_code code_revision",
    "text goes in and comes out: there is always a tokenizer": "skip_tokenizer_init",
    "speculative decoding comes with a later version": (
        "speculative_config spec_method spec_model spec_tokens num_speculative_tokens num_lookahead_slots"
    ),
    "LoRA comes with a later version": "enable_lora lora_modules max_loras max_lora_rank max_cpu_loras",
    "tool calls come with a later version": (
        "enable_auto_tool_choice tool_call_parser tool_parser_plugin tool_server tool_strict_level "
        "exclude_tools_when_tool_choice_none"
    ),
    "separate reasoning comes with a later version": "reasoning_parser",
    "grammars come with a later version": "structured_outputs_config guided_decoding_backend",
    "pictures come with a later version": "limit_mm_per_prompt mm_processor_kwargs mmproj",
    "files are mapped, and the system keeps of them in memory what is used": "mmap no_mmap mlock",
    "there is one way to compute attention, without a table of scores": "flash_attn",
    "chat templates are always rendered with Jinja": "jinja",
    "a model is computed with the windows that it has": "disable_sliding_window",
    "keys and values behind a window are never looked at": "swa_full",
    "the model says in which order it was shown what stands around a gap": "spm_infill",
    "log-probabilities are always those of the raw logits, with at most 20 alternatives": (
        "logprobs_mode max_logprobs"
    ),
    "a request has fields of its own that change the logits": "logits_processors",
    "prefixes are always compared whole": "prefix_caching_hash_algo",
    "requests find what they have in common in one tree, from the first token on": "cache_reuse slot_prompt_similarity",
    "all requests share the KV memory": "kv_unified",
    "what a slot held stays in the prefix cache": "cache_idle_slots",
    "blocks unused longest go first, the last of a prefix before its beginning": "radix_eviction_policy",
    "layers with the same window have KV memory of their own, which is reused exactly": (
        "disable_hybrid_kv_cache_manager kv_sharing_fast_prefill ctx_checkpoints"
    ),
    "requests are admitted as long as KV memory is free, and some wait again where it runs out": (
        "schedule_conservativeness scheduler_reserve_full_isl"
    ),
    "a smaller priority is always the more urgent one": "schedule_low_priority_values_first",
    "who gives way is the last in the order of requests": "priority_scheduling_preemption_threshold",
    "an answer ends where its context is full: nothing of that is dropped": "context_shift keep",
    "/metrics tells it without being asked": (
        "collect_detailed_traces enable_log_stats disable_log_stats enable_mfu_metrics enable_per_request_metrics "
        "enable_server_load_tracking kv_cache_metrics show_hidden_metrics_for_version"
    ),
    "answers always tell their numbers of tokens": "enable_prompt_tokens_details",
}
# Those with a counterpart: setting -> ours for the same purpose, and how the two differ.
_COUNTERPARTS: Mapping[str, tuple[str, str]] = {
    "gpu_memory_utilization": ("kv_cache_memory_bytes", "memory is given as a size and not as a share"),
    "mem_fraction_static": ("kv_cache_memory_bytes", "memory is given as a size and not as a share"),
    "swap_space": ("swap_space_bytes", "it is a number of bytes here, and not of GiB"),
    "async_scheduling": ("planning_depth", "it is a number here, and 2 is on"),
    "kv_offloading_size": ("kv_disk_bytes", "keys and values go to the disk, and the size is a number of bytes"),
    **dict.fromkeys(
        ("enable_hierarchical_cache", "hicache_size", "hicache_ratio", "cache_ram"),
        ("kv_disk_bytes", "prefixes that have to leave the KV memory go to the disk"),
    ),
    "hicache_storage_backend": ("kv_disk_folder", "prefixes that have to leave the KV memory go to files"),
    "max_total_tokens": ("num_blocks", "KV memory is given in blocks, or in bytes"),
    "max_prefill_tokens": ("max_num_batched_tokens", "prompts and answers share a step"),
    "threads_batch": ("threads", "prompts and answers share a step"),
    "enable_priority_scheduling": ("scheduling_policy", "it is one of several orders"),
    "scheduler_cls": ("scheduling_policy", "an order is chosen by its name"),
    "disable_overlap_schedule": ("planning_depth", "it is a number here, and 1 is off"),
    "rope_scaling": ("hf_overrides", "it is a field of the model's config"),
    "rope_theta": ("hf_overrides", "it is a field of the model's config"),
    "kv_cache_dtype": ("kv_codec", "dtype decides the size of a cached number"),
    **dict.fromkeys(
        ("rope_freq_base", "rope_freq_scale", "rope_scale", "override_kv", "grp_attn_n", "grp_attn_w"),
        ("hf_overrides", "the model's config says it, in the words of config.json also for a GGUF"),
    ),
    **dict.fromkeys(
        ("yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
        ("hf_overrides", "it belongs to rope_scaling, a field of the model's config"),
    ),
    **dict.fromkeys(("cache_type_k", "cache_type_v"), ("kv_codec", "keys and values are stored alike")),
    **dict.fromkeys(("batch_size", "ubatch_size"), ("max_num_batched_tokens", "all requests share a step")),
    "max_num_queued_tokens": ("max_num_queued_reqs", "the queue is counted in requests"),
    "max_num_partial_prefills": ("long_prefill_token_threshold", "any number of prompts share a step"),
    "max_long_partial_prefills": ("long_prefill_token_threshold", "any number of prompts share a step"),
}
_WHY = {name: reason for reason, names in _REASONS.items() for name in names.split()}
ELSEWHERE = (*_WHY, *_COUNTERPARTS)


def why_not(name: str) -> tuple[str, str]:
    """Of a setting of another engine: why it is not here, and ours for the same purpose ("": none).

    KeyError for others. `name` in Python's spelling.
    """
    if name in _COUNTERPARTS:
        ours, reason = _COUNTERPARTS[name]
        return reason, ours
    return _WHY[name], ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` is a slip of; "" where none is so much alike."""
    near = get_close_matches(name, list(known), n=1, cutoff=LIKE)
    return near[0] if near else ""
