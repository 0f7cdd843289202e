"""Conversations: questions people asked, under one system prompt, with answers as long as real ones were."""

import csv
from collections.abc import Mapping

from pelton.core.errors import SettingError
from pelton.measure.bench.workload import Message, Sample, WorkloadOptions, rows_of

SYSTEM = (
    "You are a careful assistant. Answer in plain words, give examples where they help, and say so when you are not "
    "sure. Keep to the question; do not repeat it."
)
LONGEST_QUESTION, LONGEST_ANSWER = 4000, 256
COLUMN = "output_tokens_qwen3"  # of the answers' lengths


class Chat:
    """Arena-Hard's questions, of one turn, and MT-Bench's, of two. The second turn follows the answer to the first.

    Lengths of answers are drawn from first turns of ShareGPT, at most 256 tokens.
    """

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        talks: list[Mapping[str, object]] = [
            {"turns": [row["prompt"]]} for row in rows_of(options, "prompts/arena_hard.jsonl", "prompt")
        ]
        talks += rows_of(options, "prompts/mt_bench.jsonl", "turns")
        lengths = answer_lengths(options)
        system: Message = {"role": "system", "content": SYSTEM}
        made: list[Sample] = []
        for talk in options.pick(
            [talk for talk in talks if all(len(text) < LONGEST_QUESTION for text in _texts(talk))]
        ):
            for number, text in enumerate(_texts(talk)):
                asked: Message = {"role": "user", "content": text}
                made.append(
                    Sample(
                        options.output_len or options.random.choice(lengths),
                        messages=(asked,) if number else (system, asked),
                        follows=len(made) - 1 if number else None,
                    )
                )
        return made[: options.count]


def _texts(talk: Mapping[str, object]) -> list[str]:
    turns = talk["turns"]
    if not isinstance(turns, list) or not turns:
        raise SettingError("A row of prompts/mt_bench.jsonl has turns that are no list.", "Each is a list of texts.")
    return [str(text) for text in turns]


def answer_lengths(options: WorkloadOptions) -> list[int]:
    """Lengths of real answers in tokens."""
    assert options.data is not None
    file = options.data / "traces/sharegpt_first_turn_lengths.csv"
    if not file.is_file():
        raise SettingError(f"--data {options.data} has no traces/{file.name}.")
    try:
        with file.open(encoding="utf-8") as lines:
            found = [int(row[COLUMN]) for row in csv.DictReader(lines)]
    except (KeyError, ValueError, TypeError) as error:
        raise SettingError(
            f"{file} has no column {COLUMN} of whole numbers.", "Its first line names the columns."
        ) from error
    if not found:
        raise SettingError(f"{file} has no rows.")
    return [min(max(1, length), LONGEST_ANSWER) for length in found]
