"""PrefixTree: full blocks by the tokens they hold, so that requests that begin alike share them. Knows no request.

A trie of blocks; the path to a node spells all tokens up to its block's end, compared exactly (no hashes). Papers:
arXiv 2312.07104 (RadixAttention), 2309.06180. Invariant: whoever holds a node's block holds the blocks of all its
ancestors and gives them back tail first; so a node falls out of use after its descendants, and the first is a leaf.
"""

from collections import OrderedDict
from typing import Protocol

from pelton.kv.pool import NULL_BLOCK, BlockPool


class BlockKeys(Protocol):
    """What one request's blocks hold."""

    def key(self, block: int) -> bytes:
        """The tokens of this full block, all known, as bytes; block 0's key also has what else must agree (a salt)."""
        ...


class Node:
    """One full block. `computed`: the step that fills it is done. `attached`: it is still in the tree."""

    __slots__ = ("attached", "block", "children", "computed", "key", "parent")

    def __init__(self, key: bytes, block: int, parent: "Node | None") -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.computed = False
        self.attached = True


class PrefixTree:
    """Holds one reference of its own on each block in it; a block nobody else holds is *unused* and may be evicted.

    `most_unused`: blocks nobody uses that are kept; what was unused longest goes first. None: any number.
    """

    def __init__(self, pool: BlockPool, most_unused: int | None = None) -> None:
        self.root = Node(b"", NULL_BLOCK, None)
        self.evictions = 0
        self._pool = pool
        self._most_unused = pool.total if most_unused is None else most_unused
        self._nodes: dict[int, Node] = {}
        self._unused: OrderedDict[int, Node] = OrderedDict()

    @property
    def num_unused(self) -> int:
        return len(self._unused)

    @property
    def num_blocks(self) -> int:
        return len(self._nodes)

    def at(self, block: int) -> Node | None:
        """The node of a block, None where it is not in the tree."""
        return self._nodes.get(block)

    def match(self, keys: BlockKeys, most: int) -> list[Node]:
        """The longest path that spells what the keys say, at most `most` nodes. Takes no reference."""
        node, found = self.root, list[Node]()
        while len(found) < most and node.children:
            child = node.children.get(keys.key(len(found)))
            if child is None:
                break
            node = child
            found.append(node)
        return found

    def insert(self, parent: Node, key: bytes, block: int) -> Node | None:
        """A block that somebody holds becomes a node; None (nothing changed) where its place is taken or gone."""
        if not parent.attached or key in parent.children:
            return None
        assert block not in self._nodes, f"block {block} is in the tree already"
        self._pool.share((block,))
        node = Node(key, block, parent)
        parent.children[key] = self._nodes[block] = node
        return node

    def taken(self, block: int) -> None:
        """Somebody took a reference on a block."""
        self._unused.pop(block, None)

    def given_back(self, block: int) -> None:
        """All references but the tree's on a block are gone; evicts what is too much now."""
        if (node := self._nodes.get(block)) is not None:
            self._unused[block] = node
            while len(self._unused) > self._most_unused:
                self.evict()

    def evict(self) -> None:
        """Frees the block that has been unused longest. KeyError where none is unused."""
        block, node = self._unused.popitem(last=False)
        assert not node.children, f"block {block} is evicted before {len(node.children)} behind it"
        self.evictions += 1
        self._detach(node)

    def drop(self, node: Node) -> list[int]:
        """A node and all behind it leave the tree, in use or not; returns their blocks."""
        dropped, stack = [], [node]
        while stack:
            gone = stack.pop()
            stack += gone.children.values()
            dropped.append(gone)
        for gone in reversed(dropped):
            self._unused.pop(gone.block, None)
            self._detach(gone)
        return [gone.block for gone in dropped]

    def reset(self) -> None:
        """Frees every block nobody uses."""
        while self._unused:
            self._detach(self._unused.popitem(last=False)[1])

    def check(self) -> None:
        """Asserts that nodes, references and the order of the unused ones agree."""
        counted, stack = 0, [self.root]
        while stack:
            node = stack.pop()
            assert node.attached
            for key, child in node.children.items():
                assert child.parent is node and child.key == key and self._nodes.get(child.block) is child
                counted += 1
                stack.append(child)
        assert counted == len(self._nodes), f"{counted} nodes can be reached of {len(self._nodes)}"
        unused = {block for block in self._nodes if self._pool.references(block) == 1}
        assert unused == self._unused.keys(), f"unused by count {sorted(unused)}, by list {list(self._unused)}"
        assert len(unused) <= self._most_unused, f"{len(unused)} unused blocks kept, at most {self._most_unused}"
        place = {block: number for number, block in enumerate(self._unused)}
        for block, node in self._unused.items():
            for child in node.children.values():
                assert place.get(child.block, len(place)) < place[block], f"block {child.block} outlives {block}"

    def _detach(self, node: Node) -> None:
        assert node.parent is not None and node.attached
        node.attached = False
        del node.parent.children[node.key]
        del self._nodes[node.block]
        self._pool.drop(node.block)
