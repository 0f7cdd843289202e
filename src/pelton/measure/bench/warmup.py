"""Requests before a run: as long and of the same kind as those of the run, and none of them.

Invariant: they differ from the run's requests from the first token on, so that they leave no prefix for them, and they
draw nothing from the generator that the run's requests come from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pelton.measure.bench.workload import Sample


def warmups(samples: Sequence[Sample], count: int) -> list[Sample]:
    """`count` of them, made from the run's samples in order."""
    return [_other(samples[number % len(samples)], number + 1) for number in range(count)]


def _other(sample: Sample, number: int) -> Sample:
    if sample.messages:
        messages = tuple(_other_message(message, number) for message in sample.messages)
        return replace(sample, messages=messages, follows=None)
    if isinstance(sample.prompt, tuple):
        return replace(sample, prompt=_turned(sample.prompt))
    return replace(sample, prompt=_other_text(str(sample.prompt), number))


def _other_message(message: Mapping[str, object], number: int) -> Mapping[str, object]:
    content = message.get("content")
    return {**message, "content": _other_text(content, number)} if isinstance(content, str) else message


def _other_text(text: str, number: int) -> str:
    """Another beginning, and an end left out for it, so that it stays within the model's context."""
    opening = f"Before the run, {number}: "
    return opening + text[: max(0, len(text) - 2 * len(opening))]


def _turned(ids: tuple[int, ...]) -> tuple[int, ...]:
    """The ids turned until the first is another one; all alike stay as they are."""
    first = next((place for place, token in enumerate(ids) if token != ids[0]), 0)
    return ids[first:] + ids[:first]
