"""Sampling: from one row of logits to a token. Steps change the logits, then noise that belongs to the request draws.

Holds no state between rows. Invariant: a row's token depends on its logits, its record and its edits alone.
"""

from pelton.core.registry import Registry
from pelton.sampling.step import LogitsStep

STEPS: Registry[type[LogitsStep]] = Registry(
    "logits_step",
    {
        "allowed_tokens": "pelton.sampling.steps.allowed_tokens:AllowedTokens",
        "bad_words": "pelton.sampling.steps.bad_words:BadWords",
        "min_tokens": "pelton.sampling.steps.min_tokens:MinTokens",
        "logit_bias": "pelton.sampling.steps.logit_bias:LogitBias",
        "repetition_penalty": "pelton.sampling.steps.repetition_penalty:RepetitionPenalty",
        "count_penalties": "pelton.sampling.steps.count_penalties:CountPenalties",
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
