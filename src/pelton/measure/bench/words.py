"""Text of an exact number of tokens without sense: random words, cut. It knows no workload."""

from random import Random

from pelton.core.errors import SettingError
from pelton.measure.bench.workload import TokenIds, WorkloadOptions

WORDS = (
    "river stone paper garden window cloud engine letter market silver winter summer bridge coffee orange table "
    "music doctor forest island mirror number ocean pencil quiet rocket school ticket valley yellow animal bottle "
    "castle dragon empire flower guitar hammer insect jungle kitchen ladder magnet needle office planet question "
    "ribbon shadow temple uncle velvet wagon zebra apple button candle desert energy fabric galaxy harbor "
).split()


def random_tokens(options: WorkloadOptions, length: int) -> TokenIds:
    """So many tokens of random words."""
    if options.encode is None:
        raise SettingError("This workload counts tokens.", "Name the model's tokenizer by --tokenizer.")
    tokens: TokenIds = ()
    while len(tokens) < length:
        tokens += options.encode(_words(options.random, length - len(tokens)))
    return tokens[:length]


def _words(random: Random, count: int) -> str:
    return " ".join(random.choices(WORDS, k=max(count, 4))) + " "
