"""The part of a bench's result that quotes the machine's probe: its read rate, and how near the run came to its limits.

Invariant: a figure that would say nothing of what was measured (another engine, another machine) is left out, in words.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass

from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.backends.cpu.probe.limits import largest, matrix_rate, read_rate
from pelton.backends.cpu.probe.share import LEAST_ALTERNATIONS, Share, Turns, share_of_limit
from pelton.core.clock import Clock
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM, work_done
from pelton.engine.prompts import Prompt

WEIGHTS, FORMAT_WEIGHTS, KV_READ, FLOPS = "weight_bytes", "weight_bytes:", "read:attend", "flops:"
BACKEND = "cpu"
CALL_SECONDS, MOST_STEPS, WARM_STEPS = 0.02, 8, 8  # a call of several steps is long enough to be timed
SPARE_STEPS = 8  # where tokens come several at a time, the last ones may not be asked for
DECODE_TOKENS = 1 + WARM_STEPS + LEAST_ALTERNATIONS * MOST_STEPS + SPARE_STEPS
Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Moved:
    """What steps read and computed: packed weights by format, keys and values, FLOPs."""

    weights: Mapping[str, int]
    weight_bytes: int
    kv_bytes: int
    flops: int

    @staticmethod
    def between(before: Mapping[str, int], after: Mapping[str, int], steps: int = 1) -> "Moved":
        """Of two readings of the counters, for each of so many steps."""
        done = {name: (count - before.get(name, 0)) // steps for name, count in after.items()}
        return Moved(
            {name.removeprefix(FORMAT_WEIGHTS): n for name, n in done.items() if name.startswith(FORMAT_WEIGHTS) and n},
            done.get(WEIGHTS, 0),
            done.get(KV_READ, 0),
            sum(count for name, count in done.items() if name.startswith(FLOPS)),
        )

    @property
    def read_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes


def machine_part(probe: MachineProbe) -> Table:
    """Of the machine alone: what memory gives at most, and the kernels in use."""
    rate = largest(probe)
    return {
        "date": probe.date,
        "quick": probe.quick,
        "busy": probe.busy,
        "isa": probe.identity.isa,
        "threads": probe.identity.threads,
        "working_set_bytes": rate.working_set_bytes,
        "read_bytes_per_s": rate.bytes_per_s.median,
        "matrix_flops_per_s": matrix_rate(probe),
    }


def start_part(probe: MachineProbe) -> Table:
    """Of a start: the machine, and the disk that the first one reads from."""
    disk = probe.disk
    return {
        **machine_part(probe),
        "disk_read_bytes_per_s": disk.read_bytes_per_s,
        "disk_write_bytes_per_s": disk.write_bytes_per_s,
    }


def serve_part(probe: MachineProbe, weight_bytes: int, tpot_ms: object) -> Table:
    """Of a server of ours here: reading its weights once, beside the median time between tokens (ms, None: no token).

    Every step reads the weights once, however many requests it works for; cached keys and values come on top.
    """
    rate = read_rate(probe, weight_bytes)
    read_ms = weight_bytes / rate * 1000
    share = read_ms / tpot_ms if isinstance(tpot_ms, float) and tpot_ms > 0 else None
    return {
        **machine_part(probe),
        "weight_bytes": weight_bytes,
        "weights_read_bytes_per_s": rate,
        "weights_read_ms": read_ms,
        "share_of_read_limit": share,
    }


def run_part(probe: MachineProbe, before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> Table:
    """Of a whole run, prompts included: which part of its time its bytes and its FLOPs would take at the limits."""
    moved = Moved.between(before, after)
    steps = max(1, after.get("steps", 0) - before.get("steps", 0))
    rate = read_rate(probe, moved.read_bytes // steps)
    return {
        **machine_part(probe),
        "run_read_bytes": moved.read_bytes,
        "run_flops": moved.flops,
        "step_read_bytes_per_s": rate,
        "share_of_read_limit": moved.read_bytes / rate / seconds,
        "share_of_matrix_limit": moved.flops / matrix_rate(probe) / seconds,
    }


def decode_part(llm: LLM, prompt: Sequence[int], clock: Clock) -> Table | None:
    """Of decoding one request, in turns with reads of a step's bytes; `limit` names the tighter one.

    `prompt`: token ids, of which as many are used as leave room for DECODE_TOKENS. None where that is none, and for a
    backend whose steps do not run on worker threads of ours.
    """
    asked = list(prompt[: max(0, llm.report.max_model_len - DECODE_TOKENS)])
    if llm.report.backend != BACKEND or not asked:
        return None
    moved, share = decode_share(llm, {"prompt_token_ids": asked}, clock)
    return {
        "step_bytes": moved.read_bytes,
        "weight_bytes": dict(moved.weights),
        "kv_bytes": moved.kv_bytes,
        "alternations": share.alternations,
        "step_ms": share.step_s.median * 1000,
        "read_ms": share.read_s.median * 1000,
        "expansion_ms": share.expansion_s.median * 1000 if share.expansion_s else None,
        "read_bytes_per_s": share.read_bytes_per_s,
        "limit": share.tighter,
        "share_of_read_limit": asdict(share.read_share),
        "share_of_limit": asdict(share.limit_share),
    }


def decode_share(llm: LLM, prompt: Prompt, clock: Clock) -> tuple[Moved, Share]:
    """(what a step moves, its share) of one request's decoding, after the first tokens; a step ends with a token."""
    stream = _tokens(llm, prompt)
    next(stream)
    before = work_done(llm)
    start = clock.now()
    for _ in range(WARM_STEPS):
        next(stream)
    taken = (clock.now() - start) / WARM_STEPS
    moved = Moved.between(before, work_done(llm), WARM_STEPS)
    steps = max(1, min(MOST_STEPS, round(CALL_SECONDS / taken) if taken else MOST_STEPS))

    def some_steps() -> None:
        for _ in range(steps):
            next(stream)

    turns = Turns(LEAST_ALTERNATIONS, steps)
    try:
        share = share_of_limit(
            some_steps, moved.read_bytes, turns, weights=moved.weights, threads=llm.report.threads, clock=clock
        )
    finally:
        stream.close()
    return moved, share


def _tokens(llm: LLM, prompt: Prompt) -> Generator[int, None, None]:
    """The answer's tokens as they come, DECODE_TOKENS of them."""
    params = SamplingParams(temperature=0.0, max_tokens=DECODE_TOKENS, ignore_eos=True, detokenize=False)
    for piece in llm.stream(prompt, params):
        yield from piece.token_ids
