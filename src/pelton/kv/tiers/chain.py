"""Digests that stand for all tokens from a beginning up to a block's end, and what a block is called by outside memory.

Invariant: two blocks have the same digest exactly if their paths spell the same, under the same namespace (SHA-256).
"""

from dataclasses import dataclass
from hashlib import sha256

from pelton.kv.prefix import BlockKeys, Node

MOST_KNOWN = 1 << 16  # nodes whose digests are remembered


def root_digest(namespace: bytes) -> bytes:
    """Of the empty path."""
    return sha256(namespace).digest()


def next_digest(digest: bytes, key: bytes) -> bytes:
    """Of a path that goes on with a block of this key."""
    return sha256(digest + key).digest()


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


class Chains:
    """Digests of nodes of the tree, and of requests' paths; each is computed once while it is remembered."""

    def __init__(self) -> None:
        self._known: dict[Node, bytes] = {}

    def of_node(self, node: Node) -> bytes:
        """The digest of the path to a node's end."""
        path, digest = list[Node](), self._known.get(node)
        while digest is None:
            if node.parent is None:
                digest = root_digest(node.key)
                break
            path.append(node)
            node = node.parent
            digest = self._known.get(node)
        for step in reversed(path):
            digest = next_digest(digest, step.key)
            self._remember(step, digest)
        return digest

    def of_blocks(self, root: Node, keys: BlockKeys, known: list[bytes], count: int) -> list[bytes]:
        """`known`, the digests of the first blocks of what begins at `root`, and those up to the `count`-th."""
        digest = known[-1] if known else root_digest(root.key)
        for block in range(len(known), count):
            digest = next_digest(digest, keys.key(block))
            known.append(digest)
        return known

    def forget(self, node: Node) -> None:
        """The node may be gone."""
        self._known.pop(node, None)

    def _remember(self, node: Node, digest: bytes) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[node] = digest
