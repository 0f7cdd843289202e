"""What a block is called outside of memory: by the digest of all tokens from a beginning up to its end (Node.digest).

Invariant: two blocks of a KV group have the same name exactly if their paths spell the same in the same namespace.
"""

from dataclasses import dataclass

from pelton.kv.node import Node, chained
from pelton.kv.prefix import BlockKeys


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
