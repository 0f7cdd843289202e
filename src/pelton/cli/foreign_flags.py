"""Flags of other engines: spellings that `pelton serve` takes for its own, and vLLM's that mean nothing here.

Only where the meaning is equal is a spelling taken. Invariant: no name is in both tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass


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

# vLLM's flags without a meaning here -> the setting that is for the same purpose, or what to know; "": nothing is.
UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(
        "--allow-credentials --allowed-headers --allowed-methods --api-server-count --async-scheduling "
        "--attention-backend --chat-template-content-format --collect-detailed-traces --compilation-config "
        "--config-format --convert --cpu-offload-gb --cudagraph-capture-sizes --data-parallel-size -dp "
        "--default-chat-template-kwargs --disable-access-log-for-endpoints --disable-fastapi-docs "
        "--disable-log-stats --distributed-executor-backend --download-dir --enable-auto-tool-choice --enable-eplb "
        "--enable-expert-parallel --enable-log-deltas --enable-log-outputs --enable-lora --enable-mfu-metrics "
        "--enable-per-request-metrics --enable-prompt-tokens-details --enable-server-load-tracking "
        "--enable-sleep-mode --enable-ssl-refresh --enable-tokenizer-info-endpoint --enforce-eager "
        "--exclude-tools-when-tool-choice-none --fingerprint-mode --grpc-port --h11-max-header-count "
        "--h11-max-incomplete-event-size --hf-config-path --hf-overrides --hf-token --kv-cache-metrics "
        "--kv-events-config --kv-offloading-backend --kv-offloading-size --kv-transfer-config --limit-mm-per-prompt "
        "--load-format --log-error-stack --logits-processors --logprobs-mode --lora-modules --max-cpu-loras "
        "--max-log-len --max-logprobs --max-lora-rank --max-loras --middleware --mm-processor-kwargs --model-impl "
        "--optimization-level -O --otlp-traces-endpoint --performance-mode --pipeline-parallel-size -pp "
        "--pooler-config --prefix-caching-hash-algo --quantization -q --reasoning-parser --response-role "
        "--return-tokens-as-token-ids --revision --runner --show-hidden-metrics-for-version --skip-tokenizer-init "
        "--spec-method --spec-model --spec-tokens --speculative-config --ssl-ca-certs --ssl-cert-reqs "
        "--stream-interval --structured-outputs-config --tensor-parallel-size -tp --tokenizer-mode "
        "--tool-call-parser --tool-parser-plugin --tool-server --tool-strict-level --trust-remote-code "
        "--watermark".split(),
        "",
    ),
    "--gpu-memory-utilization": "kv_cache_memory_bytes",
    "--swap-space": "kv_cache_memory_bytes",
    "--kv-cache-dtype": "kv_codec",
    "--max-num-queued-tokens": "max_num_queued_reqs",
    "--max-num-partial-prefills": "long_prefill_token_threshold",
    "--max-long-partial-prefills": "long_prefill_token_threshold",
    "--enable-log-stats": "verbose",
}
