"""Speed of the engine in one process, without doors: decoding and prefill, in tokens per second.

python bench/decode.py [MODEL] [--requests N] [--prompt 128] [--output 256]

One request: prefill = prompt tokens over the time to the first token, decode = (output - 1) tokens over the rest.
Several at once: all output tokens over the whole time. Greedy, past end tokens, on fixed pseudo-random token ids.
Each run computes all of it: there is no prefix cache.
"""

import argparse
import random
import time

import record

from pelton import LLM, SamplingParams

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


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--requests", type=int, default=1, help="requests at once (default: 1)")
    flags.add_argument("--prompt", type=int, default=128, help="tokens of each prompt (default: 128)")
    flags.add_argument("--output", type=int, default=256, help="tokens of each answer (default: 256)")
    flags.add_argument("--dtype", default="auto")
    flags.add_argument("--threads", type=int, default=0)
    given = flags.parse_args()
    before = record.machine()
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
        else:
            figures = {"total_tok_s": record.summary([time_all(llm, prompts, params) for _ in range(given.runs)], 1)}
        notes = llm.report
    for name, value in figures.items():
        print(f"{name:<16}{value}")
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
        record.keep("decode", settings, figures, before)


if __name__ == "__main__":
    main()
