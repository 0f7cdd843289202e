"""Offline work: the same worked examples in front of every problem, all asked at once, answers of a fixed length."""

from pelton.measure.bench.workload import Sample, WorkloadOptions, rows_of

OUTPUT_LEN, SHOTS = 128, 4


class Batch:
    """GSM8K with four worked problems in front."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        rows = rows_of(options, "prompts/gsm8k_test.jsonl", "question", "answer")
        shots = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[:SHOTS])
        return [
            Sample(options.output_len or OUTPUT_LEN, prompt=f"{shots}Question: {row['question']}\nAnswer:")
            for row in options.pick(rows[SHOTS:])
        ]
