"""Speed of the engine in one process, without doors: decoding and prefill, in tokens per second.

python bench/decode.py [MODEL] [--requests N] [--prompt 128] [--output 256]

One request: prefill = prompt tokens over the time to the first token, decode = (output - 1) tokens over the rest.
Several at once: all output tokens over the whole time. Greedy, past end tokens, on fixed pseudo-random token ids.
Each run computes all of it: there is no prefix cache.

Beside the figures stands how near they are to the machine's limits: for one request the time of a step in turns with
reading the bytes it reads, for several the whole run's bytes and FLOPs (docs/probe.md).
"""

import argparse
import random
import time
from collections.abc import Mapping
from typing import Any

import record

from pelton import LLM, SamplingParams
from pelton.backends.cpu.probe.figures import BUSY_MARK
from pelton.core.clock import SystemClock
from pelton.engine.llm import work_done
from pelton.measure.bench.limits import decode_part, machine_part, run_part

FIRST_ID = 1000  # special tokens stand at the start of the vocabularies we know


def make_prompts(llm: LLM, count: int, length: int) -> list[dict[str, object]]:
    """Token ids, the same on every machine."""
    draw = random.Random(0)
    last = llm.get_tokenizer().vocab_size - 1
    return [{"prompt_token_ids": [draw.randint(FIRST_ID, last) for _ in range(length)]} for _ in range(count)]


def time_one(llm: LLM, prompt: dict[str, object], params: SamplingParams) -> tuple[float, float, int]:
    """(seconds to the first token, seconds from it to the last, tokens)."""
    start = time.perf_counter()
    first = last = 0.0
    tokens = 0
    for piece in llm.stream(prompt, params):
        if piece.token_ids:
            last = time.perf_counter()
            first = first or last
            tokens += len(piece.token_ids)
    return first - start, last - first, tokens


def time_all(llm: LLM, prompts: list[dict[str, object]], params: SamplingParams) -> float:
    """Tokens per second of all requests together."""
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - start)


def open_model(given: argparse.Namespace) -> LLM:
    """Without a prefix cache: every run asks the same prompts, and would find them there."""
    return LLM(
        given.model,
        dtype=given.dtype,
        threads=given.threads,
        max_num_seqs=given.requests,
        enable_prefix_caching=False,
    )


def limit_words(limits: Mapping[str, Any]) -> str:
    """How near the figures are to the machine's limits."""
    one = limits.get("decode")
    if one is None:
        names = ("share_of_read_limit", "share_of_matrix_limit")
        said = ", ".join(f"{name} {limits[name]:.3f}" for name in names if name in limits) or "not told"
        return said + (BUSY_MARK if limits.get("busy") else "")
    share = one["share_of_limit"]
    spread = f"{share['median']:.3f} [{share['lowest']:.3f}-{share['highest']:.3f}]"
    return f"share {spread} of {one['limit']}: {one['step_ms']:.3f} ms for {one['step_bytes'] / 1e6:.1f} MB"


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--requests", type=int, default=1, help="requests at once (default: 1)")
    flags.add_argument("--prompt", type=int, default=128, help="tokens of each prompt (default: 128)")
    flags.add_argument("--output", type=int, default=256, help="tokens of each answer (default: 256)")
    flags.add_argument("--dtype", default="auto")
    flags.add_argument("--threads", type=int, default=0)
    given = flags.parse_args()
    before = record.machine()
    machine = record.probe(given, given.threads)
    limits: dict[str, object] | None = None
    params = SamplingParams(temperature=0.0, max_tokens=given.output, ignore_eos=True)
    figures: dict[str, object]
    with open_model(given) as llm:
        prompts = make_prompts(llm, given.requests, given.prompt)
        time_one(llm, prompts[0], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        if given.requests == 1:
            runs = [time_one(llm, prompts[0], params) for _ in range(given.runs)]
            figures = {
                "prefill_tok_s": record.summary([given.prompt / first for first, _, _ in runs], 1),
                "decode_tok_s": record.summary([(tokens - 1) / rest for _, rest, tokens in runs], 1),
                "first_token_ms": record.summary([first * 1000 for first, _, _ in runs], 1),
            }
            if machine is not None:
                ids = prompts[0]["prompt_token_ids"]
                assert isinstance(ids, list)
                limits = {**machine_part(machine), "decode": decode_part(llm, ids, SystemClock())}
        else:
            work, start = work_done(llm), time.perf_counter()
            figures = {"total_tok_s": record.summary([time_all(llm, prompts, params) for _ in range(given.runs)], 1)}
            if machine is not None:
                limits = run_part(machine, work, work_done(llm), time.perf_counter() - start)
        notes = llm.report
    for name, value in figures.items():
        print(f"{name:<16}{value}")
    if limits is not None:
        print(f"{'limits':<16}{limit_words(limits)}")
    if not given.dry:
        settings: dict[str, object] = {
            "model": given.model,
            "dtype": notes.dtype,
            "threads": notes.threads,
            "requests": given.requests,
            "prompt": given.prompt,
            "output": given.output,
            "prefix_cache": False,
        }
        record.keep("decode", settings, figures, before, limits)


if __name__ == "__main__":
    main()
