"""Gaps of running answers while a long prompt arrives: python -m bench.arrival [MODEL] [--prompt 7000] [--runs 3]

One engine in this process, in turns with steps of the size that it chooses itself and with steps that take the whole
prompt at once. A JSON line is appended to bench/results/arrival.jsonl: milliseconds between tokens of the running
answers from the long prompt's arrival to its first token, and that first token's own wait.
"""

from dataclasses import replace

import numpy as np
from bench import record

from pelton.core.clock import SystemClock
from pelton.core.config import resolve
from pelton.core.events import TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.build import build_engine
from pelton.engine.engine import Engine

NAME = "arrival"
CONTEXT, BEFORE = 100, 20  # tokens of the running answers' prompts, and of their answers when the long prompt comes
WHOLE = "whole prompt"


def request(name: str, tokens: int, answer: int, vocab: int, seed: int) -> Request:
    ids = tuple(np.random.default_rng(seed).integers(0, vocab, tokens).tolist())
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer, ignore_eos=True)
    return Request(name, ids, params, frozenset(), answer, arrival=0.0)


def gaps(engine: Engine, decodes: int, prompt: int, vocab: int) -> tuple[list[float], float]:
    """(milliseconds between tokens of the running answers, milliseconds to the long prompt's first token)."""
    clock = SystemClock()
    for number in range(decodes):
        engine.add_request(request(f"r{number}", CONTEXT, prompt, vocab, number))
    last: dict[str, float] = {}
    told = found = 0
    arrival, between = None, list[float]()
    while not found:
        if arrival is None and told >= decodes * BEFORE:
            arrival = clock.now()
            engine.add_request(request("long", prompt, 2, vocab, 1000))
        events, now = engine.step(), clock.now()
        for event in events:
            if not isinstance(event, TokensGenerated):
                continue
            told += len(event.tokens)
            if event.request_id == "long":
                found = 1
            else:
                if arrival is not None:
                    between.append(1000 * (now - last[event.request_id]))
                last[event.request_id] = now
    assert arrival is not None
    engine.abort_all()
    engine.step()
    engine.reset_prefix_cache()
    return between, 1000 * (now - arrival)


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--prompt", type=int, default=7000, help="tokens of the long prompt (default: 7000)")
    flags.add_argument("--decodes", type=int, default=4, help="answers under way (default: 4)")
    given = flags.parse_args()
    before = record.machine()
    chosen = build_engine(resolve(given.model, {"max_num_seqs": given.decodes + 1}))
    own, why = chosen.config.schedule, chosen.report.step
    chosen.close()
    whole = given.prompt + given.decodes
    parts = build_engine(resolve(given.model, {"max_num_seqs": given.decodes + 1, "max_num_batched_tokens": whole}))
    sizes = {f"{own.max_num_batched_tokens} tokens": own, WHOLE: replace(own, max_num_batched_tokens=whole)}
    # A step of the whole prompt is to be one, whatever its tokens cost.
    sizes[WHOLE] = replace(sizes[WHOLE], context_cost=0.0, itl_target_ms=None)
    taken: dict[str, list[tuple[list[float], float]]] = {name: [] for name in sizes}
    for _ in range(given.runs):
        for name, limits in sizes.items():
            parts.engine.scheduler.limits = limits
            taken[name].append(gaps(parts.engine, given.decodes, given.prompt, parts.limits.vocab))
    parts.close()
    figures: dict[str, object] = {}
    for name, runs in taken.items():
        p50, p99 = ([float(np.percentile(between, at)) for between, _ in runs] for at in (50, 99))
        figures[name] = row = {
            "itl_p50_ms": record.summary(p50),
            "itl_p99_ms": record.summary(p99),
            "ttft_ms": record.summary([wait for _, wait in runs]),
        }
        print(f"{name:14} { ({key: value['median'] for key, value in row.items()}) }")
    if not given.dry:
        settings = {"prompt": given.prompt, "decodes": given.decodes, "runs": given.runs, "step": why}
        record.keep(NAME, settings, figures, before)


if __name__ == "__main__":
    main()
