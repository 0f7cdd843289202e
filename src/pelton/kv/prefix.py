"""PrefixTree: full blocks by the tokens they hold, so that requests that begin alike share them. Knows no request.

A trie of blocks of tokens for each namespace; the path to a node spells all tokens up to its block's end, compared
exactly (no hashes). A node has a block for each KV group, or none where it was evicted. A path may end in a *tail*, a
block of fewer tokens, from which others copy. Papers: arXiv 2312.07104 (RadixAttention), 2309.06180. Invariant where
no group has a window: whoever holds a node's block holds the blocks of all its ancestors and gives them back tail
first; so a node falls out of use after its descendants, and the first is a leaf.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from pelton.kv.group import KVGroup, first_block
from pelton.kv.node import Ghosts, Node
from pelton.kv.pool import NULL_BLOCK

TOKEN_BYTES = 4  # of a key, for each token


class BlockKeys(Protocol):
    """What one request's blocks hold."""

    @property
    def namespace(self) -> bytes:
        """What must agree beside the tokens: whoever has another one shares nothing with this request."""
        ...

    def key(self, block: int) -> bytes:
        """The tokens of this full block, all known, as bytes; each takes TOKEN_BYTES."""
        ...

    def part(self, block: int) -> bytes:
        """The same of a block that need not be full, without the last known token of the request."""
        ...


Evicted = Callable[[Node, int, int], None]


class PrefixTree:
    """Holds one reference of its own on each block in it; a block nobody else holds is *unused* and may be evicted.

    `most_unused`: blocks of a group that nobody uses and that are kept; what was unused longest goes first. None: any
    number. `ghosts`: what was evicted.
    """

    def __init__(self, groups: Sequence[KVGroup], block_size: int, most_unused: int | None = None) -> None:
        self.evictions = 0
        self.evicted: Evicted | None = None  # is told of a block that goes: its node, group and number
        self.ghosts = Ghosts()
        self._groups = tuple(groups)
        self._block_size = block_size
        self._most_unused = most_unused
        self._windowless = all(group.window is None for group in groups)
        # A root lives as long as somebody has it: a child, or a table that may get one.
        self._roots: WeakValueDictionary[bytes, Node] = WeakValueDictionary()
        self._nodes: tuple[dict[int, Node], ...] = tuple({} for _ in groups)
        self._unused: tuple[OrderedDict[int, Node], ...] = tuple(OrderedDict() for _ in groups)

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups."""
        return sum(len(nodes) for nodes in self._nodes)

    def roots(self) -> Iterator[Node]:
        """Of all namespaces that have nodes."""
        return (root for root in self._roots.values() if root.children)

    def root_of(self, namespace: bytes) -> Node:
        """Where the paths of a namespace begin; always the same node while somebody has it."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(namespace, len(self._groups), None)
        return root

    def num_unused(self, group: int) -> int:
        """Blocks of a group that only the tree holds."""
        return len(self._unused[group])

    def at(self, group: int, block: int) -> Node | None:
        """The node of a group's block, None where it is not in the tree."""
        return self._nodes[group].get(block)

    def match(self, keys: BlockKeys, most: int) -> list[Node]:
        """The longest path that spells what the keys say and that a request can begin with, at most `most` nodes.

        In each group all blocks must be there that the first token behind the path sees. Takes no reference.
        """
        node, found = self.root_of(keys.namespace), list[Node]()
        while len(found) < most and node.children:
            child = node.children.get(keys.key(len(found)))
            if child is None:
                break
            node = child
            found.append(node)
        return found if self._windowless else found[: _reach(found, self._groups, self._block_size)]

    def insert(self, parent: Node, key: bytes, blocks: Sequence[int]) -> Node | None:
        """Blocks that somebody holds become a node; None (nothing changed) where its place is taken or gone.

        With windows a place that is taken is no end: a group whose block is missing there gets this one. For a tail,
        whose key is shorter, it is taken too where another block begins with the same tokens.
        """
        tail = len(key) < self._block_size * TOKEN_BYTES
        if not parent.attached or (self._windowless and key in parent.children) or (tail and parent.longer(key)):
            return None
        node = parent.children.get(key)
        if node is None:
            node = parent.add(key)
            node.tail = tail
            if (start := parent.start_of(key)) is not None:
                _cool(start, self._unused)
        for group, block in enumerate(blocks):
            if block == NULL_BLOCK or node.blocks[group] != NULL_BLOCK:
                continue
            assert block not in self._nodes[group], f"block {block} is in the tree already"
            self._groups[group].pool.share((block,))
            node.blocks[group] = block
            node.computed = False
            self._nodes[group][block] = node
        return node

    def taken(self, group: int, block: int) -> None:
        """Somebody took a reference on a block."""
        self._unused[group].pop(block, None)

    def given_back(self, group: int, block: int, *, cold: bool = False) -> None:
        """All references but the tree's on a block are gone; evicts what is too much now.

        `cold`: nobody is likely to want it, so it goes before all others.
        """
        if (node := self._nodes[group].get(block)) is not None:
            self._unused[group][block] = node
            if cold or (node.tail and node.parent is not None and node.parent.longer(node.key)):
                self._unused[group].move_to_end(block, last=False)
            while self._most_unused is not None and len(self._unused[group]) > self._most_unused:
                self.evict(group)

    def evict(self, group: int) -> None:
        """Frees the group's block that has been unused longest. KeyError where none is unused."""
        block, node = self._unused[group].popitem(last=False)
        assert not self._windowless or not node.children, f"block {block} goes before {len(node.children)} behind it"
        self.evictions += 1
        if self.evicted is not None:
            self.evicted(node, group, block)
        if not node.tail:
            self.ghosts.add(node.digest)
        self._forget(group, node)
        _prune(node)

    def drop(self, node: Node) -> list[tuple[int, int]]:
        """A node and all behind it leave the tree, in use or not; returns their blocks as (group, block)."""
        dropped, stack = list[Node](), [node]
        while stack:
            gone = stack.pop()
            stack += gone.children.values()
            dropped.append(gone)
        blocks = [(group, block) for gone in dropped for group, block in enumerate(gone.blocks) if block != NULL_BLOCK]
        for gone in reversed(dropped):
            for group, block in enumerate(gone.blocks):
                if block != NULL_BLOCK:
                    self._unused[group].pop(block, None)
                    self._forget(group, gone)
            gone.detach()
        if node.parent is not None:
            _prune(node.parent)
        return blocks

    def reset(self) -> None:
        """Frees every block nobody uses, and remembers nothing of them."""
        for group, unused in enumerate(self._unused):
            while unused:
                _, node = unused.popitem(last=False)
                self._forget(group, node)
                _prune(node)
        self.ghosts.clear()

    def check(self) -> None:
        """Asserts that nodes, references and the order of the unused ones agree."""
        counted, stack = [0] * len(self._groups), list(self._roots.values())
        while stack:
            node = stack.pop()
            node.check()
            for child in node.children.values():
                assert child.children or any(child.blocks), "a leaf without a block"
                assert not self._windowless or all(child.blocks), "a hole in a path"
                for group, block in enumerate(child.blocks):
                    assert block == NULL_BLOCK or self._nodes[group].get(block) is child
                    counted[group] += block != NULL_BLOCK
                stack.append(child)
        for number, (nodes, unused) in enumerate(zip(self._nodes, self._unused, strict=True)):
            assert counted[number] == len(nodes), f"{counted[number]} nodes can be reached of {len(nodes)}"
            alone = {block for block in nodes if self._groups[number].pool.references(block) == 1}
            assert alone == unused.keys(), f"unused by count {sorted(alone)}, by list {list(unused)}"
            most = self._most_unused
            assert most is None or len(alone) <= most, f"{len(alone)} unused blocks kept, at most {most}"
            if self._windowless:
                _check_leaves_go_first(number, unused)

    def _forget(self, group: int, node: Node) -> None:
        """A node has no block in a group any more."""
        block, node.blocks[group] = node.blocks[group], NULL_BLOCK
        del self._nodes[group][block]
        self._groups[group].pool.drop(block)


def _reach(path: Sequence[Node], groups: Sequence[KVGroup], size: int) -> int:
    """How many leading nodes of a path a request can begin with."""
    reach, runs = 0, [0] * len(groups)
    for depth, node in enumerate(path, 1):
        whole = True
        for number, group in enumerate(groups):
            runs[number] = runs[number] + 1 if node.blocks[number] != NULL_BLOCK else 0
            whole &= runs[number] >= depth - first_block(group.window, depth * size, size)
        if whole:
            reach = depth
    return reach


def _prune(node: Node) -> None:
    """Nodes that hold nothing and lead to nothing go."""
    while node.parent is not None and not node.children and not any(node.blocks):
        parent = node.parent
        node.detach()
        node = parent


def _cool(node: Node, unused: Sequence[OrderedDict[int, Node]]) -> None:
    """Another block has all that this tail has: it goes before all others."""
    for order, block in zip(unused, node.blocks, strict=True):
        if node.tail and block in order:
            order.move_to_end(block, last=False)


def _check_leaves_go_first(group: int, unused: OrderedDict[int, Node]) -> None:
    place = {block: number for number, block in enumerate(unused)}
    for block, node in unused.items():
        for child in node.children.values():
            behind = child.blocks[group]
            assert place.get(behind, len(place)) < place[block], f"block {behind} outlives {block}"
