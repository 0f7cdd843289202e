"""Flags of other engines: spellings that `pelton serve` takes for its own, and those that mean nothing here, and why.

Only where the meaning is equal is a spelling taken. What is said of other engines' settings stands in core/words,
here what is about flags and the server alone. Invariant: no flag is in two of the tables.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import click

from pelton.core.config import ELSEWHERE, nearest, why_not

_GLUED = re.compile("-[a-z]{2,}")


@dataclass(frozen=True, slots=True)
class Alias:
    """Another spelling of a setting; with `value` it is a switch that stands for that value, and turned off for `off`
    (None: for the other of two).
    """

    setting: str
    value: bool | int | None = None
    off: int | None = None


ALIASES: Mapping[str, Alias] = {
    # vLLM
    "--num-gpu-blocks-override": Alias("num_blocks"),
    "-q": Alias("quantization"),
    "--async-scheduling": Alias("planning_depth", 2, off=1),
    "--no-async-scheduling": Alias("planning_depth", 1, off=2),
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

# Switches for what is always on here, and why they change nothing.
ALWAYS_ON: Mapping[str, str] = {
    "--enable-chunked-prefill": "prompts are always computed in pieces of at most max_num_batched_tokens",
    "--enable-request-id-headers": "every answer has its id in X-Request-Id",
    # llama-server's
    "--slots": "GET /slots is always there",
    "--metrics": "GET /metrics is always there",
    "--cont-batching": "requests always share steps",
    # SGLang's
    "--enable-metrics": "GET /metrics is always there",
    "--enable-cache-report": "answers always tell how much of a prompt was in the cache",
    "--enable-mixed-chunk": "prompts and answers always share steps",
}

# Flags that are another spelling of a setting in ELSEWHERE.
_SHORT: Mapping[str, str] = {
    "-tp": "tensor_parallel_size",
    "--tp": "tensor_parallel_size",
    "--tp-size": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-O": "optimization_level",
    "-ngl": "n_gpu_layers",
    "-dev": "device",
    "-fa": "flash_attn",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-mm": "mmproj",
    "-gan": "grp_attn_n",
    "-gaw": "grp_attn_w",
    "-b": "batch_size",
    "-ub": "ubatch_size",
    "-md": "spec_model",
    "--model-draft": "spec_model",
    "--lora": "enable_lora",
    "-cram": "cache_ram",
    "-sps": "slot_prompt_similarity",
    "-nkvo": "no_kv_offload",
    "-tb": "threads_batch",
    "--no-context-shift": "context_shift",
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
    "one is for silent clients, --client-timeout, and one for requests, --request-timeout": "--timeout -to",
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
# What commands may have under another name: flags, or arguments in capitals; the first that a command has is told.
DEFAULTS = "--override-generation-config"  # of a server's requests
_LENGTH = ("--max-tokens", "--output-len", DEFAULTS)
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "-n": _LENGTH,
    "--predict": _LENGTH,
    "--n-predict": _LENGTH,
    "-p": ("PROMPT", "--quick", "--prompts"),
    "--prompt": ("PROMPT", "--quick", "--prompts"),
    "-f": ("--prompt-file", "FILE", "--prompts"),
    "--file": ("--prompt-file", "FILE", "--prompts"),
    "--temp": ("--temperature", DEFAULTS),
    "--repeat-penalty": ("--repetition-penalty", DEFAULTS),
}
UNSUPPORTED: Mapping[str, str] = {
    **{flag: name for name in ELSEWHERE if (flag := "--" + name.replace("_", "-")) not in ALIASES},
    **_SHORT,
    **{flag: reason for reason, flags in _DOOR.items() for flag in flags.split()},
}


def foreign(flag: str, known: Collection[str] | None = None) -> str:
    """What to say of a flag that another engine has and that means nothing here; "" for any other.

    `known`: what the command has, flags and arguments; None: all that there is.
    """
    if flag in OTHER_NAMES:
        here = next((name for name in OTHER_NAMES[flag] if known is None or name in known), "")
        if not here:
            return f"{flag} is not supported here: this command has nothing of the kind. Leave it out."
        return f"{flag} is not supported here: it has another name. What is there for it: {_shown(here)}."
    if flag not in UNSUPPORTED:
        return ""
    name = UNSUPPORTED[flag]
    reason, ours = why_not(name) if name in ELSEWHERE else (name, "")
    there = bool(ours) and (known is None or flag_of(ours) in known)
    remedy = f"What is there for it: {flag_of(ours)}." if there else "Leave it out."
    return f"{flag} is not supported here: {reason}. {remedy}"


def foreign_word(command: click.Command, words: Sequence[str]) -> str:
    """What to say of the first word such as -ctk, which click would take for -c and its value; "" without one."""
    options = [param for param in command.params if isinstance(param, click.Option) and not param.is_flag]
    takes = {flag for option in options for flag in option.opts}
    known = [flag for param in command.params for flag in spellings(param)]
    for before, word in pairwise(["", *words]):
        if word == "--":
            break
        if _GLUED.fullmatch(word) and before not in takes and word not in known and (why := foreign(word, known)):
            return why
    return ""


def spellings(param: click.Parameter) -> list[str]:
    """How a command is given the parameter: its flags or, of an argument, the words of its help."""
    if isinstance(param, click.Argument):
        return re.findall(r"[A-Z]+", param.metavar or (param.name or "").upper())
    return [flag for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")]


def _shown(name: str) -> str:
    return name if name.startswith("-") else f"the argument {name}"


def nearest_flag(flag: str, known: Iterable[str]) -> str:
    """The known flag that this one is a slip of; "" where none is so much alike. Short ones are never alike."""
    return nearest(flag, [one for one in known if one.startswith("--")]) if flag.startswith("--") else ""


def flag_of(setting: str) -> str:
    """The flag of a setting by its name."""
    return "--" + setting.replace("_", "-")
