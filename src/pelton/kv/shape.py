"""The shape of KV memory: how many blocks are what, and the prefix tree as runs of blocks, for people and JSON.

Changes nothing. `shape` looks at every block once, about a microsecond for each. Invariant: what is left out is
counted.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pelton.kv.blocks import Blocks
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import TOKEN_BYTES

NAMED = 12  # hexadecimal digits of a namespace's digest
DEEPEST = 100  # runs one in the other: readers of JSON have their limits

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """At most `runs` of the tree's runs are described, with the ids of their `tokens` only if these are asked for."""

    runs: int = 200
    tokens: bool = False


def shape(blocks: Blocks, wanted: Wanted) -> Json:
    """All of it. Of a group's blocks `held` are in use, of which `shared` by several; `cached` are kept for whoever
    comes; `saved`: blocks that there would be more if nothing were shared.

    A run: `nodes` one behind the other, none of which but the last has several children; their blocks in all groups by
    what they are; how many nodes lie `behind` it, and those of its `children` that are told.
    """
    told: Json = {"block_size": blocks.block_size, "groups": [_group(blocks, n) for n in range(len(blocks.groups))]}
    tree = blocks.tree
    if tree is None:
        return {**told, "prefix_caching": False}
    roots = list(tree.roots())
    sizes = {id(node): below for root in roots for node, below in _sizes(root)}
    told |= {
        "prefix_caching": True,
        "namespaces": len(roots),
        "nodes": sum(sizes[id(root)][0] - 1 for root in roots),
        "depth": max((sizes[id(root)][1] for root in roots), default=0),
        "evictions": tree.evictions,
    }
    return {**told, **_runs(blocks, roots, sizes, wanted)}


def spared(blocks: Blocks) -> int:
    """The `saved` of all groups, without looking at every block."""
    holds = sum(group.pool.holds for group in blocks.groups) - (0 if blocks.tree is None else blocks.tree.num_blocks)
    return holds - sum(blocks.held)


def _group(blocks: Blocks, number: int) -> Json:
    group, tree = blocks.groups[number], blocks.tree
    cached = held = shared = saved = 0
    for block in range(1, group.pool.total + 1):
        references = group.pool.references(block)
        if not references:
            continue
        holders = references - (tree is not None and tree.at(number, block) is not None)
        cached += not holders
        held += holders > 0
        shared += holders > 1
        saved += max(0, holders - 1)
    total = group.pool.total
    figures = {"total": total, "held": held, "shared": shared, "cached": cached, "free": total - held - cached}
    return {"window": group.window, **figures, "saved": saved}


def _sizes(root: Node) -> Iterable[tuple[Node, tuple[int, int]]]:
    """(node, (nodes from it on with itself, the longest path of them behind it))."""
    order = [root]
    for node in order:
        order.extend(node.children.values())
    found: dict[int, tuple[int, int]] = {}
    for node in reversed(order):
        below = [found[id(child)] for child in node.children.values()]
        found[id(node)] = 1 + sum(count for count, _ in below), max((deep + 1 for _, deep in below), default=0)
    return [(node, found[id(node)]) for node in order]


def _runs(blocks: Blocks, roots: list[Node], sizes: dict[int, tuple[int, int]], wanted: Wanted) -> Json:
    """Broad before deep, the largest first; `left_out`: nodes that none of the runs told has."""
    listed: list[Json] = []
    queue: deque[tuple[Node, list[Json], int]] = deque()

    def line_up(node: Node, place: list[Json], level: int) -> None:
        children = sorted(node.children.values(), key=lambda child: -sizes[id(child)][0])
        queue.extend((child, place, level) for child in children if level < DEEPEST)

    for root in sorted(roots, key=lambda root: -sizes[id(root)][0]):
        children: list[Json] = []
        count, deep = sizes[id(root)]
        listed.append({"name": root.digest.hex()[:NAMED], "nodes": count - 1, "depth": deep, "children": children})
        line_up(root, children, 0)
    told = seen = 0
    while queue and told < wanted.runs:
        node, place, level = queue.popleft()
        run = _run(node)
        behind: list[Json] = []
        place.append({**_describe(blocks, run, wanted), "behind": sizes[id(run[-1])][0] - 1, "children": behind})
        line_up(run[-1], behind, level + 1)
        told, seen = told + 1, seen + len(run)
    return {"tree": listed, "left_out": sum(sizes[id(root)][0] - 1 for root in roots) - seen}


def _run(node: Node) -> list[Node]:
    """The node, and what is behind it as long as that is one."""
    run = [node]
    while len(run[-1].children) == 1:
        run.extend(run[-1].children.values())
    return run


def _describe(blocks: Blocks, run: list[Node], wanted: Wanted) -> Json:
    held = shared = cached = 0
    for node in run:
        for number, block in enumerate(node.blocks):
            if block != NULL_BLOCK:
                holders = blocks.groups[number].pool.references(block) - 1
                held, shared, cached = held + (holders > 0), shared + (holders > 1), cached + (not holders)
    told: Json = {"nodes": len(run), "held": held, "shared": shared, "cached": cached}
    computing = sum(not node.computed for node in run)
    if computing:
        told["computing"] = computing
    if wanted.tokens:
        told["tokens"] = [token for node in run for token in _tokens(node.key)]
    return told


def _tokens(key: bytes) -> list[int]:
    return [int.from_bytes(key[at : at + TOKEN_BYTES], "little") for at in range(0, len(key), TOKEN_BYTES)]
