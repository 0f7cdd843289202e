"""Sampling: from one row of logits to a token. Steps change the logits, then noise that belongs to the request draws.

Holds no state between rows. Invariant: a row's token depends on its logits and its record alone.
"""

from pelton.core.registry import Registry
from pelton.sampling.step import LogitsStep

STEPS: Registry[type[LogitsStep]] = Registry(
    "logits_step",
    {
        "temperature": "pelton.sampling.steps.temperature:Temperature",
        "min_p": "pelton.sampling.steps.min_p:MinP",
        "top_k": "pelton.sampling.steps.top_k:TopK",
        "top_p": "pelton.sampling.steps.top_p:TopP",
    },
)


def ordered_steps() -> tuple[LogitsStep, ...]:
    """One of each registered step, in the order in which they are applied."""
    steps = [STEPS.get(name)() for name in STEPS]
    return tuple(sorted(steps, key=lambda step: step.stage))
