"""What a prefix cache of each size would find of a stream of prompts, in one pass. No engine, no model.

The cache evicts what was used longest ago, of a prompt its end first, as kv/prefix.py does. Then the blocks that a
cache of C blocks holds are the C used last, so that one list of distances has the answer for every size (R. L. Mattson
et al., IBM Systems Journal 9, 1970). Prompts are taken one after the other: what runs at once needs blocks, too.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pelton.core.config import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Reuse:
    """`tokens` of all prompts, in `prompts` of them; `blocks` that differ. `distances`, ascending: of each block that
    was there before, how many a cache must hold to have it still.
    """

    prompts: int
    tokens: int
    blocks: int
    distances: tuple[int, ...]
    block_size: int = BLOCK_TOKENS

    def found(self, blocks: int | None = None) -> int:
        """Tokens that a cache of so many blocks finds; None: of any number."""
        return self.block_size * (len(self.distances) if blocks is None else bisect_right(self.distances, blocks))

    def rate(self, blocks: int | None = None) -> float:
        """The same over all tokens."""
        return self.found(blocks) / self.tokens if self.tokens else 0.0

    @property
    def enough(self) -> int:
        """Blocks beyond which nothing more is found."""
        return self.distances[-1] if self.distances else 0


class _Recent:
    """How many of the marks lie behind a place: a Fenwick tree over the moments of use."""

    def __init__(self, places: int) -> None:
        self._sums = [0] * (places + 1)
        self._marks = 0

    def mark(self, place: int, change: int) -> None:
        self._marks += change
        place += 1
        while place < len(self._sums):
            self._sums[place] += change
            place += place & -place

    def since(self, place: int) -> int:
        """Marks at `place` and later."""
        before, at = 0, place
        while at:
            before += self._sums[at]
            at &= at - 1
        return self._marks - before


def reuse(prompts: Iterable[Sequence[int]], block_size: int = BLOCK_TOKENS) -> Reuse:
    """Of prompts' token ids, in this order. As in the engine, whole blocks are found, and a prompt's last token never
    is: the answer begins with its logits.
    """
    paths, tokens = list[list[int]](), 0
    usable = list[int]()
    names: dict[tuple[int, bytes], int] = {}
    for prompt in prompts:
        tokens += len(prompt)
        ids, path, node = array("i", prompt), list[int](), -1
        for start in range(0, len(ids) - block_size + 1, block_size):
            node = names.setdefault((node, ids[start : start + block_size].tobytes()), len(names))
            path.append(node)
        paths.append(path)
        usable.append((len(prompt) - 1) // block_size)
    return Reuse(len(paths), tokens, len(names), tuple(sorted(_distances(paths, usable))), block_size)


def _distances(paths: Sequence[Sequence[int]], usable: Sequence[int]) -> Iterable[int]:
    recent, last, moment = _Recent(sum(map(len, paths))), dict[int, int](), 0
    for path, most in zip(paths, usable, strict=True):
        for node in path[:most]:
            if node not in last:
                break
            yield recent.since(last[node])
        for node in reversed(path):
            if node in last:
                recent.mark(last[node], -1)
            recent.mark(moment, 1)
            last[node] = moment
            moment += 1
