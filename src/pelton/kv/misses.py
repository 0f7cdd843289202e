"""Why a prompt was not found whole in the prefix tree: the first block that is missing, and what stands in its place.

Changes nothing. Invariant: what it says is true of the tree at the moment of asking, except that what was evicted is
remembered for a while only.
"""

from collections.abc import Sequence
from itertools import islice

from pelton.core.plan import Lookup
from pelton.kv.node import Node, chained
from pelton.kv.prefix import BlockKeys, PrefixTree

MOST_NAMESPACES = 256  # looked through for the same tokens


def explain(tree: PrefixTree, keys: BlockKeys, found: Sequence[Node], most: int, cached: int, size: int) -> Lookup:
    """Of a prompt with these keys the blocks of `found` were there, of at most `most` that could be, each of `size`
    tokens; with the start of one more, `cached` tokens.
    """
    depth = len(found)
    if depth == most:
        return Lookup("complete" if cached else "too_short", cached)
    node, key, start = found[-1] if found else tree.root_of(keys.namespace), keys.key(depth), depth * size
    # With windows a node may be there that has not all of its blocks, or not all of those before it.
    if key in node.children or chained(node.digest, key) in tree.ghosts:
        return Lookup("evicted", start)
    if not depth and any(key in root.children for root in islice(tree.roots(), MOST_NAMESPACES)):
        return Lookup("namespace")
    shared, nearest = next(node.alike(key), (0, None))
    width = len(key) // size
    shared //= width
    if nearest is None or not (depth or shared):
        return Lookup("unseen", start)
    return Lookup("diverged", start + shared, _token(key, shared, width), _token(nearest.key, shared, width))


def _token(key: bytes, place: int, width: int) -> int:
    return int.from_bytes(key[place * width : (place + 1) * width], "little")
