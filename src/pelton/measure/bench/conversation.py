"""Conversations: which samples follow one another, and what a later one is asked with. It asks nothing.

Invariant: a turn's history holds the answers that really came, never one that was made up beforehand.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from pelton.measure.bench.workload import Message, Sample

History = tuple[Message, ...]


def chains(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of the samples, one list for each conversation, by their first turns. A lone sample is one, too.

    ValueError where a sample follows none that came before it, or one that another follows already.
    """
    last: dict[int, list[int]] = {}
    for place, sample in enumerate(samples):
        if sample.follows is None:
            last[place] = [place]
        elif sample.follows in last:
            last[place] = [*last.pop(sample.follows), place]
        else:
            raise ValueError(f"Sample {place} cannot follow {sample.follows}.")
    return sorted(last.values())


def turns(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of all first turns, of all second ones, and so on."""
    return [[place for place in turn if place is not None] for turn in zip_longest(*chains(samples), fillvalue=None)]


def spoken(sample: Sample, history: History) -> Sample:
    """The sample as it is sent."""
    return replace(sample, messages=history + sample.messages) if history else sample


def remembered(asked: Sample, answer: str) -> History:
    """What is in front of the next turn: everything up to the answer to this one, as it was sent."""
    return (*asked.messages, {"role": "assistant", "content": answer})
