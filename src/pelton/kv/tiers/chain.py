"""What a block is called outside of memory: by the digest of all tokens from a beginning up to its end (Node.digest).

Invariant: two blocks of a KV group have the same name exactly if their paths spell the same in the same namespace.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pelton.kv.group import Held
from pelton.kv.node import Node, chained
from pelton.kv.prefix import TOKEN_BYTES, BlockKeys, PrefixTree


@dataclass(frozen=True, slots=True)
class Name:
    """A block of a KV group: the digest of the path to its end."""

    digest: bytes
    group: int

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.digest.hex()}.{self.group}"


@dataclass(frozen=True, slots=True)
class Labelled:
    """A block with what tells that it is the right one: the digest of the path before it, and its own tokens' key."""

    name: Name
    parent: bytes
    key: bytes


class Path:
    """Digests of what a request's keys spell behind `root`, computed as far as they are asked for."""

    def __init__(self, root: Node, keys: BlockKeys) -> None:
        self.root = root
        self._keys = keys
        self._digests = [root.digest]

    def name(self, group: int, entry: int) -> Name:
        """Of the block in this entry of a table."""
        while len(self._digests) < entry + 2:
            self._digests.append(chained(self._digests[-1], self._keys.key(len(self._digests) - 1)))
        return Name(self._digests[entry + 1], group)

    def labelled(self, group: int, entry: int) -> Labelled:
        """The same with what tells that it is the right one."""
        return Labelled(self.name(group, entry), self._digests[entry], self._keys.key(entry))


def nodes_of(tree: PrefixTree, held: Held) -> list[Node]:
    """The path whose blocks somebody holds, as a table has them; empty where its end is in the tree no more."""
    ends = (tree.at(group, blocks[-1]) for group, blocks in enumerate(held) if blocks)
    node = next((found for found in ends if found is not None), None)
    nodes = list[Node]()
    while node is not None and node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def tokens_of(keys: Iterable[bytes]) -> int:
    """How many tokens the blocks of these keys hold."""
    return sum(map(len, keys)) // TOKEN_BYTES
