"""Merges for vocabularies that say how good a token is, not which pairs make it.

Such a tokenizer joins, over and over, the two neighbours whose joined text is the best token; of equals the leftmost.
"""

from collections import Counter
from collections.abc import Iterable, Set

from pelton.core.errors import CheckpointError

# Characters of all tokens, each as often as the token is cut: time and the size of the result stay in proportion. The
# vocabularies of models, of up to 260,000 tokens, take some 2^24.
MOST_CUT = 2**29


def merges_of(best_first: Iterable[str], parts: Set[str]) -> list[list[str]]:
    """All pairs of `parts` that make a token, the best token first; which pair made it is of no matter to the rule.

    Raises CheckpointError for tokens so long, and of so many lengths, that there would be more than MOST_CUT to cut.
    """
    tokens = list(best_first)
    cuts = _cuts(Counter(map(len, tokens)), {len(part) for part in parts if part})
    merges = []
    for token in tokens:
        for cut in cuts[len(token)]:
            left, right = token[:cut], token[cut:]
            if left in parts and right in parts:
                merges.append([left, right])
    return merges


def _cuts(tokens: Counter[int], parts: Set[int]) -> dict[int, list[int]]:
    """Where tokens of each length may be cut so that both parts have a length of `parts`. `tokens`: how many of each.

    A token that is longer than any two parts is not cut at all.
    """
    found: dict[int, list[int]] = {}
    ascending, work = sorted(parts), 0
    for length, count in sorted(tokens.items()):
        found[length] = [cut for cut in ascending if length - cut in parts]
        work += count * length * len(found[length])
        if work > MOST_CUT:
            raise CheckpointError(
                f"The vocabulary has tokens of {len(tokens):,} lengths, of up to {max(tokens):,} characters: to find "
                "the pairs that make them would take too long.",
                "The file may be damaged; the same model as a folder with a tokenizer.json may work.",
            )
    return found
