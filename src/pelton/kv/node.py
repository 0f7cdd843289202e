"""Node: one block of tokens in the prefix tree, with those behind it in order; and ghosts, what is left of those gone.

Moves no block and counts no reference. Invariant: `children` has the keys of `_order`, which are sorted.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from hashlib import sha256

from pelton.kv.pool import NULL_BLOCK

MOST_GHOSTS = 1 << 14  # paths; about 2 MB


class Node:
    """One block of tokens; `blocks`: where its keys and values stand in each group, NULL_BLOCK: nowhere.

    `computed`: the steps that fill them are done. `attached`: it is still in the tree. `parent` None: it stands for a
    namespace, its `key`, and has no block. `children` by their keys; changed by `add` and `detach` alone. `tail`: its
    block is filled in part, and nothing is behind it.
    """

    __slots__ = (
        "__weakref__",
        "_digest",
        "_order",
        "attached",
        "blocks",
        "children",
        "computed",
        "key",
        "parent",
        "tail",
    )

    def __init__(self, key: bytes, groups: int, parent: "Node | None") -> None:
        self.key = key
        self.blocks = [NULL_BLOCK] * groups
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.computed = False
        self.attached = True
        self.tail = False
        self._order: list[bytes] = []
        self._digest = sha256(b"namespace\0" + key).digest() if parent is None else b""

    @property
    def digest(self) -> bytes:
        """Of the namespace and all tokens up to this block's end: the same in every process."""
        missing, node = list[Node](), self
        while not node._digest:
            missing.append(node)
            assert node.parent is not None
            node = node.parent
        for one in reversed(missing):
            one._digest = chained(node._digest, one.key)
            node = one
        return self._digest

    def add(self, key: bytes) -> "Node":
        """A new child without blocks."""
        node = self.children[key] = Node(key, len(self.blocks), self)
        insort(self._order, key)
        return node

    def detach(self) -> None:
        """The node is in the tree no more."""
        parent = self.parent
        assert parent is not None and self.attached
        self.attached = False
        del parent.children[self.key]
        del parent._order[bisect_left(parent._order, self.key)]

    def longer(self, key: bytes) -> bool:
        """Whether a child's key begins with this one and goes on."""
        behind = bisect_right(self._order, key)
        return behind < len(self._order) and self._order[behind].startswith(key)

    def start_of(self, key: bytes) -> "Node | None":
        """The child whose key is the start of this one, if there is one; of several the one nearest to it in order."""
        before = bisect_left(self._order, key) - 1
        start = self._order[before] if before >= 0 else key
        return self.children[start] if start != key and key.startswith(start) else None

    def alike(self, key: bytes) -> "Iterator[tuple[int, Node]]":
        """(leading bytes in common, child), those first that have most in common. `key` may be the start of one."""
        order, behind = self._order, bisect_left(self._order, key)
        before = behind - 1
        # In their order, whatever shares more stands nearer.
        left = common(key, order[before]) if before >= 0 else -1
        right = common(key, order[behind]) if behind < len(order) else -1
        while left >= 0 or right >= 0:
            if left >= right:
                yield left, self.children[order[before]]
                before -= 1
                left = common(key, order[before]) if before >= 0 else -1
            else:
                yield right, self.children[order[behind]]
                behind += 1
                right = common(key, order[behind]) if behind < len(order) else -1

    def check(self) -> None:
        """Asserts that the node and its children know each other."""
        assert self.attached and sorted(self.children) == self._order
        for key, child in self.children.items():
            assert child.parent is self and child.key == key
            assert not (child.tail and child.children), "something is behind a block that is not full"


def chained(above: bytes, key: bytes) -> bytes:
    """The digest of a node with this key behind one with the digest `above`."""
    return sha256(above + key).digest()


def common(one: bytes, other: bytes) -> int:
    """How many leading bytes are equal."""
    length = min(len(one), len(other))
    return next((place for place in range(length) if one[place] != other[place]), length)


class Ghosts:
    """Digests of the paths that were evicted last. It may say of a path that it was evicted which is there again."""

    def __init__(self, most: int = MOST_GHOSTS) -> None:
        self._most = most
        self._digests: dict[bytes, None] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, digest: bytes) -> None:
        """The oldest one goes where there are too many."""
        self._digests.pop(digest, None)
        self._digests[digest] = None
        if len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]

    def clear(self) -> None:
        self._digests.clear()
