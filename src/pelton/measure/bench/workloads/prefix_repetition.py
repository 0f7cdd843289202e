"""A few long prefixes, each asked about many times with a different end: what a prefix cache is for."""

from pelton.measure.bench.words import random_tokens
from pelton.measure.bench.workload import Sample, WorkloadOptions

PREFIXES, PREFIX_LEN, SUFFIX_LEN, OUTPUT_LEN = 8, 1024, 64, 64


class PrefixRepetition:
    """Eight prefixes of `prefix_len` tokens; `input_len` is that of the ends. In random order."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        prefixes = [random_tokens(options, options.prefix_len or PREFIX_LEN) for _ in range(PREFIXES)]
        made = [
            Sample(
                options.output_len or OUTPUT_LEN,
                prompt=prefixes[place % PREFIXES] + random_tokens(options, options.input_len or SUFFIX_LEN),
            )
            for place in range(options.count)
        ]
        options.random.shuffle(made)
        return made
