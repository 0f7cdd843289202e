"""How far a request can begin computed, where the tree has some of its blocks and files others. Takes no reference.

Invariant: of each group all is there that the first token behind the reach sees.
"""

from collections.abc import Callable, Sequence

from pelton.kv.group import KVGroup, first_block
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import BlockKeys

Place = tuple[int, int]  # a KV group, and an entry of a table of it
Has = Callable[[int, int], bool]


def path_of(root: Node, keys: BlockKeys, most: int) -> list[Node]:
    """The nodes that spell what the keys say, whatever blocks they have."""
    path, node = list[Node](), root
    while len(path) < most and node.children:
        child = node.children.get(keys.key(len(path)))
        if child is None:
            break
        path.append(child)
        node = child
    return path


def reach_of(groups: Sequence[KVGroup], block_size: int, path: Sequence[Node], most: int, has: Has) -> int:
    """How many blocks, at most `most`, a request can begin with, where the tree has `path` and `has` says what else."""
    reach, runs = 0, [0] * len(groups)
    for depth in range(1, most + 1):
        entry, whole = depth - 1, True
        for number, group in enumerate(groups):
            there = (entry < len(path) and path[entry].blocks[number] != NULL_BLOCK) or has(number, entry)
            if not there and group.window is None:
                return reach
            runs[number] = runs[number] + 1 if there else 0
            whole &= runs[number] >= depth - first_block(group.window, depth * block_size, block_size)
        if whole:
            reach = depth
    return reach


def lacking(groups: Sequence[KVGroup], block_size: int, path: Sequence[Node], reach: int) -> list[Place]:
    """What the tree lacks of that: group by group, in the order of the entries."""
    return [
        (number, entry)
        for number, group in enumerate(groups)
        for entry in range(first_block(group.window, reach * block_size, block_size), reach)
        if entry >= len(path) or path[entry].blocks[number] == NULL_BLOCK
    ]
