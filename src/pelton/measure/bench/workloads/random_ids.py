"""Prompts of an exact length without sense: random words, cut to the number of tokens. No two share a prefix.

With `prefix_len` all of them begin with the same tokens.
"""

from pelton.measure.bench.words import random_tokens
from pelton.measure.bench.workload import Sample, WorkloadOptions

INPUT_LEN, OUTPUT_LEN = 1024, 128


class RandomIds:
    """See the module."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        length = INPUT_LEN if options.input_len is None else options.input_len
        prefix = random_tokens(options, options.prefix_len) if options.prefix_len else ()
        return [
            Sample(options.output_len or OUTPUT_LEN, prompt=prefix + random_tokens(options, length))
            for _ in range(options.count)
        ]
