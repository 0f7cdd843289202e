"""Reuse: what a workload's prompts have in common, and so whether a prefix cache may help a run. It asks nothing."""

import json
from collections.abc import Sequence

from pelton.measure.bench.workload import Sample

TEMPLATE_TOKENS = 32  # that a chat template may put in front of every prompt: who has found no more found nothing else
SAME_TOKENS, SAME_CHARACTERS = 16, 64  # prompts that are equal so far begin alike


def reuse_note(samples: Sequence[Sample], cached: int, prompts: int) -> str | None:
    """What is to be said of `cached` of `prompts` tokens; None for none, and where prompts have prefixes in common."""
    if not cached:
        return None
    told = f"{cached:,} of {prompts:,} prompt tokens came from the prefix cache"
    alone = [sample for sample in samples if sample.follows is None]
    again = len(alone) - len({_whole(sample) for sample in alone})
    if again:
        return f"{told}: {again} of {len(alone)} requests have a prompt that another one has, too."
    much = cached >= min(TEMPLATE_TOKENS * len(samples), prompts // 2)
    if much and len(alone) == len(samples) == len({_beginning(sample) for sample in samples}):
        return f"{told}, although no two of these prompts begin alike: they were known from before the run."
    return None


def _whole(sample: Sample) -> object:
    return json.dumps(sample.messages) if sample.messages else sample.prompt


def _beginning(sample: Sample) -> object:
    if isinstance(sample.prompt, tuple):
        return sample.prompt[:SAME_TOKENS]
    text = sample.prompt or "\n".join(str(message.get("content")) for message in sample.messages)
    return text[:SAME_CHARACTERS]
