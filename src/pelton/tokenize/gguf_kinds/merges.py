"""Merges for vocabularies that say how good a token is, not which pairs make it.

Such a tokenizer joins, over and over, the two neighbours whose joined text is the best token; of equals the leftmost.
"""

from collections.abc import Iterable, Set


def merges_of(best_first: Iterable[str], parts: Set[str]) -> list[list[str]]:
    """All pairs of `parts` that make a token, the best token first; which pair made it is of no matter to the rule."""
    merges = []
    for token in best_first:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in parts and right in parts:
                merges.append([left, right])
    return merges
