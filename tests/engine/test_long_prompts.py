"""What a long prompt does to those who are being answered: a token in every step, and no step with more work than told.

Work is what the CPU backend counts, not time.
"""

from pathlib import Path

from pelton.core.config import resolve
from pelton.core.events import TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.build import EngineParts, build_engine

BUDGET, LONG = 64, 900


def flops(parts: EngineParts) -> int:
    return sum(total for name, total in parts.executable.counters().items() if name.startswith("flops:"))


def add(parts: EngineParts, name: str, length: int, count: int) -> None:
    prompt = tuple(5 + (length + i * i) % 200 for i in range(length))
    params = SamplingParams(temperature=0, max_tokens=count, seed=1, ignore_eos=True)
    parts.engine.add_request(Request(name, prompt, params, frozenset(), count, 0.0))


def largest_steps(model: Path, cost: float | None) -> tuple[list[int], int, int]:
    """(FLOPs of each step beside a long prompt, of a full step of a fresh prompt, pieces of the long one)."""
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": BUDGET, "context_cost": cost}
    parts = build_engine(resolve(str(model), settings))
    try:
        engine = parts.engine
        add(parts, "fresh", BUDGET, 1)
        before = flops(parts)
        while engine.has_work:
            engine.step()
        full = flops(parts) - before
        add(parts, "stream", 3, 400)
        engine.step()
        add(parts, "long", LONG, 1)
        work = []
        while "long" in {engine.scheduler.request_at(row) for row in range(4)} or not work:
            before = flops(parts)
            told = engine.step()
            work.append(flops(parts) - before)
            streamed = [event for event in told if isinstance(event, TokensGenerated) and event.request_id == "stream"]
            assert [len(event.tokens) for event in streamed] == [1], "a token in every step"
        return work, full, len(work)
    finally:
        parts.close()


def test_no_step_does_more_for_standing_in_a_long_prompt(tiny_model: Path) -> None:
    plain, full, pieces = largest_steps(tiny_model, 0.0)
    assert pieces == -(-LONG // (BUDGET - 1))
    assert max(plain) > 1.5 * full, "attention over 900 tokens is no small part of this model's work"
    bounded, full, more = largest_steps(tiny_model, None)
    assert more > pieces
    # The kernels compute whole blocks of 32 keys, and the stream's own token stands in the step too.
    assert max(bounded) < 1.15 * full, f"{max(bounded) / full:.2f} times a full step"
