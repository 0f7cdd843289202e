"""Flags of other engines: spellings that `pelton serve` takes for its own, and those that mean nothing here, and why.

Only where the meaning is equal is a spelling taken. What is said of the engine's settings stands in core/config.py,
here what is about flags and the server alone. Invariant: no flag is in both tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pelton.core.config import ELSEWHERE, nearest, why_not


@dataclass(frozen=True, slots=True)
class Alias:
    """Another spelling of a setting; with `value` it is a switch that stands for that value."""

    setting: str
    value: bool | None = None


ALIASES: Mapping[str, Alias] = {
    # vLLM
    "--num-gpu-blocks-override": Alias("num_blocks"),
    "--disable-uvicorn-access-log": Alias("disable_access_log", True),
    "--uvicorn-log-level": Alias("log_level"),
    # SGLang
    "--model-path": Alias("model"),
    "--tokenizer-path": Alias("tokenizer"),
    "--context-length": Alias("max_model_len"),
    "--max-running-requests": Alias("max_num_seqs"),
    "--max-queued-requests": Alias("max_num_queued_reqs"),
    "--chunked-prefill-size": Alias("max_num_batched_tokens"),
    "--schedule-policy": Alias("scheduling_policy"),
    "--disable-radix-cache": Alias("enable_prefix_caching", False),
    "--page-size": Alias("block_size"),
    "--random-seed": Alias("seed"),
    # llama-server
    "-hf": Alias("model"),
    "--hf-repo": Alias("model"),
    "-c": Alias("max_model_len"),
    "--ctx-size": Alias("max_model_len"),
    "-np": Alias("max_num_seqs"),
    "--parallel": Alias("max_num_seqs"),
    "-t": Alias("threads"),
    "-a": Alias("served_model_name"),
    "--alias": Alias("served_model_name"),
    "--chat-template-file": Alias("chat_template"),
    "--sse-ping-interval": Alias("sse_keep_alive_interval"),
    "--ssl-key-file": Alias("ssl_keyfile"),
    "--ssl-cert-file": Alias("ssl_certfile"),
}

# vLLM's switches for what is always on here, and why they change nothing.
ALWAYS_ON: Mapping[str, str] = {
    "--enable-chunked-prefill": "prompts are always computed in pieces of at most max_num_batched_tokens",
    "--enable-request-id-headers": "every answer has its id in X-Request-Id",
}

# Flags that are another spelling of a setting in ELSEWHERE.
_SHORT: Mapping[str, str] = {
    "-tp": "tensor_parallel_size",
    "--tp": "tensor_parallel_size",
    "--tp-size": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
    "-O": "optimization_level",
    "-ngl": "n_gpu_layers",
    "-dev": "device",
    "-md": "spec_model",
    "--model-draft": "spec_model",
    "--lora": "enable_lora",
}
# The server's, by the reason why they are not here.
_DOOR: Mapping[str, str] = {
    "of what browsers may do only the origins are chosen, by --allowed-origins": (
        "--allow-credentials --allowed-headers --allowed-methods"
    ),
    "requests and answers' states are logged as a whole or not at all, and texts never": (
        "--disable-access-log-for-endpoints --enable-log-deltas --enable-log-outputs --log-error-stack --max-log-len"
    ),
    "its routes are always the same": "--disable-fastapi-docs --enable-tokenizer-info-endpoint",
    "it speaks HTTP alone": "--grpc-port",
    "it reads HTTP by other means, within bounds of its own": "--h11-max-header-count --h11-max-incomplete-event-size",
    "clients are told apart by --api-key alone, and certificates are read at the start": (
        "--ssl-ca-certs --ssl-cert-reqs --enable-ssl-refresh"
    ),
    "each token is told as soon as it is there": "--stream-interval",
    "a request brings chat_template_kwargs itself": "--default-chat-template-kwargs",
    "the template is handed what the request says": "--chat-template-content-format",
    "answers are always the assistant's": "--response-role",
    "a file of a repository is chosen with org/name:FILE": "--hf-file -hff",
    "nothing here does that": (
        "--enable-sleep-mode --fingerprint-mode --middleware --otlp-traces-endpoint --return-tokens-as-token-ids "
        "--watermark"
    ),
}
UNSUPPORTED: Mapping[str, str] = {
    **{"--" + name.replace("_", "-"): name for name in ELSEWHERE},
    **_SHORT,
    **{flag: reason for reason, flags in _DOOR.items() for flag in flags.split()},
}


def foreign(flag: str) -> str:
    """What to say of a flag that another engine has and that means nothing here; "" for any other."""
    if flag not in UNSUPPORTED:
        return ""
    name = UNSUPPORTED[flag]
    reason, ours = why_not(name) if name in ELSEWHERE else (name, "")
    remedy = f"What is there for it: {flag_of(ours)}." if ours else "Leave it out."
    return f"{flag} is not supported here: {reason}. {remedy}"


def nearest_flag(flag: str, known: Iterable[str]) -> str:
    """The known flag that this one is a slip of; "" where none is so much alike. Short ones are never alike."""
    return nearest(flag, [one for one in known if one.startswith("--")]) if flag.startswith("--") else ""


def flag_of(setting: str) -> str:
    """The flag of a setting by its name."""
    return "--" + setting.replace("_", "-")
