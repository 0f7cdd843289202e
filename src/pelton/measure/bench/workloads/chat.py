"""Conversations: questions people asked, under one system prompt, with answers as long as real ones were."""

import csv

from pelton.core.errors import SettingError
from pelton.measure.bench.workload import Sample, WorkloadOptions, rows_of

SYSTEM = (
    "You are a careful assistant. Answer in plain words, give examples where they help, and say so when you are not "
    "sure. Keep to the question; do not repeat it."
)
LONGEST_QUESTION, LONGEST_ANSWER = 4000, 256


class Chat:
    """Arena-Hard and MT-Bench questions; lengths of answers drawn from first turns of ShareGPT, at most 256 tokens."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        questions = [str(row["prompt"]) for row in rows_of(options, "prompts/arena_hard.jsonl")]
        for row in rows_of(options, "prompts/mt_bench.jsonl"):
            turns = row["turns"]
            assert isinstance(turns, list)
            questions.append(str(turns[0]))
        rows = options.pick([{"question": text} for text in questions if len(text) < LONGEST_QUESTION])
        lengths = answer_lengths(options)
        return [
            Sample(
                options.output_len or options.random.choice(lengths),
                messages=(
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": row["question"]},
                ),
            )
            for row in rows
        ]


def answer_lengths(options: WorkloadOptions) -> list[int]:
    """Lengths of real answers in tokens."""
    assert options.data is not None
    file = options.data / "traces/sharegpt_first_turn_lengths.csv"
    if not file.is_file():
        raise SettingError(f"--data {options.data} has no traces/{file.name}.")
    with file.open(encoding="utf-8") as lines:
        found = [int(row["output_tokens_qwen3"]) for row in csv.DictReader(lines)]
    return [min(max(1, length), LONGEST_ANSWER) for length in found]
