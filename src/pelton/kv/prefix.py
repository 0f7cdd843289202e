"""PrefixTree: full blocks by the tokens they hold, so that requests that begin alike share them. Knows no request.

A trie of blocks of tokens; the path to a node spells all tokens up to its block's end, compared exactly (no hashes). A
node has a block for each KV group, or none where it was evicted. Papers: arXiv 2312.07104 (RadixAttention), 2309.06180.
Invariant where no group has a window: whoever holds a node's block holds the blocks of all its ancestors and gives them
back tail first; so a node falls out of use after its descendants, and the first is a leaf.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from pelton.kv.group import KVGroup, first_block
from pelton.kv.pool import NULL_BLOCK


class BlockKeys(Protocol):
    """What one request's blocks hold."""

    def key(self, block: int) -> bytes:
        """The tokens of this full block, all known, as bytes; block 0's key also has what else must agree (a salt)."""
        ...


class Node:
    """One block of tokens; `blocks`: where its keys and values stand in each group, NULL_BLOCK: nowhere.

    `computed`: the steps that fill them are done. `attached`: it is still in the tree.
    """

    __slots__ = ("attached", "blocks", "children", "computed", "key", "parent")

    def __init__(self, key: bytes, groups: int, parent: "Node | None") -> None:
        self.key = key
        self.blocks = [NULL_BLOCK] * groups
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.computed = False
        self.attached = True


Evicted = Callable[[Node, int, int], None]


class PrefixTree:
    """Holds one reference of its own on each block in it; a block nobody else holds is *unused* and may be evicted.

    `most_unused`: blocks of a group that nobody uses and that are kept; what was unused longest goes first. None: any
    number.
    """

    def __init__(self, groups: Sequence[KVGroup], block_size: int, most_unused: int | None = None) -> None:
        self.root = Node(b"", len(groups), None)
        self.evictions = 0
        self.evicted: Evicted | None = None  # is told of a block that goes: its node, group and number
        self._groups = tuple(groups)
        self._block_size = block_size
        self._most_unused = most_unused
        self._windowless = all(group.window is None for group in groups)
        self._nodes: tuple[dict[int, Node], ...] = tuple({} for _ in groups)
        self._unused: tuple[OrderedDict[int, Node], ...] = tuple(OrderedDict() for _ in groups)

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups."""
        return sum(len(nodes) for nodes in self._nodes)

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
        node, found = self.root, list[Node]()
        while len(found) < most and node.children:
            child = node.children.get(keys.key(len(found)))
            if child is None:
                break
            node = child
            found.append(node)
        return found if self._windowless else found[: self._reach(found)]

    def insert(self, parent: Node, key: bytes, blocks: Sequence[int]) -> Node | None:
        """Blocks that somebody holds become a node; None (nothing changed) where its place is taken or gone.

        With windows a place that is taken is no end: a group whose block is missing there gets this one.
        """
        if not parent.attached or (self._windowless and key in parent.children):
            return None
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(key, len(self._groups), parent)
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
            if cold:
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
        self._forget(group, node)
        self._prune(node)

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
            _detach(gone)
        if node.parent is not None:
            self._prune(node.parent)
        return blocks

    def reset(self) -> None:
        """Frees every block nobody uses."""
        for group, unused in enumerate(self._unused):
            while unused:
                _, node = unused.popitem(last=False)
                self._forget(group, node)
                self._prune(node)

    def check(self) -> None:
        """Asserts that nodes, references and the order of the unused ones agree."""
        counted, stack = [0] * len(self._groups), [self.root]
        while stack:
            node = stack.pop()
            assert node.attached
            for key, child in node.children.items():
                assert child.parent is node and child.key == key
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

    def _reach(self, path: Sequence[Node]) -> int:
        reach, runs, size = 0, [0] * len(self._groups), self._block_size
        for depth, node in enumerate(path, 1):
            whole = True
            for number, group in enumerate(self._groups):
                runs[number] = runs[number] + 1 if node.blocks[number] != NULL_BLOCK else 0
                whole &= runs[number] >= depth - first_block(group.window, depth * size, size)
            if whole:
                reach = depth
        return reach

    def _forget(self, group: int, node: Node) -> None:
        """A node has no block in a group any more."""
        block, node.blocks[group] = node.blocks[group], NULL_BLOCK
        del self._nodes[group][block]
        self._groups[group].pool.drop(block)

    def _prune(self, node: Node) -> None:
        """Nodes that hold nothing and lead to nothing go."""
        while node.parent is not None and not node.children and not any(node.blocks):
            parent = node.parent
            _detach(node)
            node = parent


def _detach(node: Node) -> None:
    """The node is in the tree no more."""
    assert node.parent is not None and node.attached
    node.attached = False
    del node.parent.children[node.key]


def _check_leaves_go_first(group: int, unused: OrderedDict[int, Node]) -> None:
    place = {block: number for number, block in enumerate(unused)}
    for block, node in unused.items():
        for child in node.children.values():
            behind = child.blocks[group]
            assert place.get(behind, len(place)) < place[block], f"block {behind} outlives {block}"
