"""What a prefix cache of each size would find of a stream of prompts, in one pass. No engine, no model.

The cache evicts what was used longest ago, of a prompt its end first, as kv/prefix.py does. Then the blocks that a
cache of C blocks holds are the C used last, so that one list of distances has the answer for every size (R. L. Mattson
et al., IBM Systems Journal 9, 1970). Prompts are taken one after the other, and answers are not known: what runs at
once needs blocks too, and what is found of answers comes on top.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from pelton.core.config import BLOCK_TOKENS
from pelton.kv.node import Node
from pelton.kv.prefix import TOKEN_BYTES
from pelton.schedule.sharing import least_part

MOST_COMPARED = 64  # blocks behind the same one, those that share most first


@dataclass(frozen=True, slots=True)
class Reuse:
    """`tokens` of all prompts, in `prompts` of them; `blocks` that differ, those filled in part among them. A cache of
    `needs[i]` blocks, ascending, finds `sums[i]` tokens.
    """

    prompts: int
    tokens: int
    blocks: int
    needs: tuple[int, ...]
    sums: tuple[int, ...]

    def found(self, blocks: int | None = None) -> int:
        """Tokens that a cache of so many blocks finds; None: of any number."""
        smaller = len(self.needs) if blocks is None else bisect_right(self.needs, blocks)
        return self.sums[smaller - 1] if smaller else 0

    def rate(self, blocks: int | None = None) -> float:
        """The same over all tokens."""
        return self.found(blocks) / self.tokens if self.tokens else 0.0

    @property
    def enough(self) -> int:
        """Blocks beyond which nothing more is found."""
        return self.needs[-1] if self.needs else 0


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


def reuse(
    prompts: Iterable[Sequence[int] | NDArray[np.int32]], block_size: int = BLOCK_TOKENS, *, parts: bool = True
) -> Reuse:
    """Of prompts' token ids, in this order. As in the engine, a prompt's last token is never found: the answer begins
    with its logits. `parts`: a block that begins like what is needed next is copied, as far as that goes.
    """
    ids = [np.asarray(prompt, np.int32) for prompt in prompts]
    read = _Reader(sum(len(one) // block_size + 1 for one in ids), block_size, parts)
    gains = sorted(gain for one in ids for gain in read.gains(one))
    needs, sums = (need for need, _ in gains), accumulate(tokens for _, tokens in gains)
    return Reuse(len(ids), sum(map(len, ids)), read.nodes, tuple(needs), tuple(sums))


class _Reader:
    """Takes prompts one after the other; a prompt's path has a node for each block, and for what is left one more."""

    def __init__(self, most: int, block_size: int, parts: bool) -> None:
        """`most`: nodes of all prompts together."""
        self.nodes = 0
        self._bytes = block_size * TOKEN_BYTES
        self._least = least_part(block_size) * TOKEN_BYTES
        self._parts = parts
        self._root = Node(b"", 0, None)
        self._recent = _Recent(most)
        self._last: dict[Node, int] = {}
        self._moment = 0

    def gains(self, ids: NDArray[np.int32]) -> list[tuple[int, int]]:
        """Of a prompt, which is in the caches from now on: (blocks that one must have, tokens that it finds then beyond
        what smaller ones find).
        """
        text = ids.tobytes()
        found = list(self._found(text[: max(0, len(text) - TOKEN_BYTES)]))
        self._enter(text)
        return found

    def _found(self, wanted: bytes) -> Iterator[tuple[int, int]]:
        node = self._root
        for start in range(0, len(wanted), self._bytes):
            part = wanted[start : start + self._bytes]
            child = node.children.get(part) if len(part) == self._bytes else None
            need = None if child is None else self._recent.since(self._last[child])
            best = 0
            for other, shared in sorted(self._alike(node, part)) if self._parts else ():
                if shared > best and (need is None or other < need):
                    yield other, (shared - best) // TOKEN_BYTES
                    best = shared
            if child is None or need is None:
                return
            yield need, (self._bytes - best) // TOKEN_BYTES
            node = child

    def _alike(self, node: Node, part: bytes) -> Iterator[tuple[int, int]]:
        """(blocks that a cache must have, bytes) of what can be copied behind a node."""
        for shared, other in islice(node.alike(part), MOST_COMPARED):
            shared -= shared % TOKEN_BYTES
            if not shared or (shared < self._least and shared < len(part)):
                return
            yield self._recent.since(self._last[other]), shared

    def _enter(self, text: bytes) -> None:
        node, path = self._root, list[Node]()
        for start in range(0, len(text) if self._parts else len(text) - self._bytes + 1, self._bytes):
            key = text[start : start + self._bytes]
            child = node.children.get(key)
            if child is None:
                child = node.add(key)
                self.nodes += 1
            path.append(node := child)
        for node in reversed(path):
            if node in self._last:
                self._recent.mark(self._last[node], -1)
            self._recent.mark(self._moment, 1)
            self._last[node] = self._moment
            self._moment += 1
