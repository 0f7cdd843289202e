"""Completion in an editor: the code before the cursor, a short answer, many requests with a file in common.

Each file is asked about at several places, as a typing person does: prompts extend one another.
"""

from pelton.measure.bench.workload import Sample, WorkloadOptions, rows_of

OUTPUT_LEN = 24


class IDE:
    """Single-line infilling of HumanEval; the text before the cursor alone."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        rows = rows_of(options, "prompts/humaneval_infill_singleline.jsonl", "prompt")
        first = options.random.randrange(len(rows))
        return [
            Sample(options.output_len or OUTPUT_LEN, prompt=str(rows[(first + place) % len(rows)]["prompt"]))
            for place in range(options.count)
        ]
