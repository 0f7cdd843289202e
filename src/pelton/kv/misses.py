"""Why a prompt was not found whole in the prefix tree: the first block that is missing, and what stands in its place.

Changes nothing. Invariant: what it says is true of the tree at the moment of asking, except that what was evicted is
remembered for a while only.
"""

from collections.abc import Sequence
from itertools import islice

from pelton.core.plan import Lookup
from pelton.kv.node import Node, chained
from pelton.kv.prefix import TOKEN_BYTES, BlockKeys, PrefixTree

MOST_NAMESPACES = 256  # looked through for the same tokens
MOST_NEAREST = 2  # blocks that agree longest: of those that agree equally long, one at most ends there


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
    nearest = [(common // TOKEN_BYTES, child) for common, child in islice(node.alike(key), MOST_NEAREST)]
    shared = nearest[0][0] if nearest else 0
    # What ends where the two still agree tells of no other token.
    other = next((one for same, one in nearest if same == shared < len(one.key) // TOKEN_BYTES), None)
    if other is None or not (depth or shared):
        return Lookup("unseen", start + shared)
    return Lookup("diverged", start + shared, _token(key, shared), _token(other.key, shared))


def _token(key: bytes, place: int) -> int:
    return int.from_bytes(key[place * TOKEN_BYTES : (place + 1) * TOKEN_BYTES], "little")
