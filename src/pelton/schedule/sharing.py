"""Sharing: what a request about to begin finds in the prefix tree, and for whose computing it had better wait.

Invariant: a request waits only for one that runs and will compute a block that it needs next, so that one's next step
brings it nearer; it holds up nobody else meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from pelton.core.config import CacheSection
from pelton.core.plan import Lookup
from pelton.kv.blocks import Blocks
from pelton.kv.group import Held, first_block
from pelton.kv.misses import explain
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import TOKEN_BYTES, BlockKeys, PrefixTree
from pelton.kv.shape import Wanted, shape
from pelton.schedule.sessions import Sessions
from pelton.schedule.tracked import Start, Tracked

# Copying a block moves its bytes twice, which takes less time than computing a single token even where that is cheap
# (135M parameters: 0.7 MB, some 0.2 ms, against 0.3 ms at the full speed of a large step). An eighth of a block is
# worth it without doubt; below that are mostly the words that all prompts begin with.
WORTH = 8
MOST_LOOKED_AT = 8  # blocks behind the same one, those that share most first


def least_part(block_size: int) -> int:
    """Fewest tokens of a block for which it is copied, where more than those are wanted."""
    return max(1, block_size // WORTH)


@dataclass(frozen=True, slots=True)
class _Wait:
    """For `ahead` to compute the first `until` blocks, of which `found` were there when the waiting began."""

    ahead: Tracked
    until: int
    found: int

    @property
    def lasts(self) -> bool:
        ahead, node = self.ahead, self.ahead.table.node
        writes = ahead.row is not None and ahead.gives is not None and node is not None and node.attached
        return writes and ahead.table.depth < self.until


class Sharing:
    """Figures in tokens of prompts: `asked` for by requests that began, `found`, of which `in_flight` were just being
    computed. A prompt counts once, however often its request begins again and however many answers it has.

    `sessions` hold what requests found or computed when they are over.
    """

    def __init__(self, blocks: Blocks, cache: CacheSection) -> None:
        self.sessions = Sessions(blocks, cache.session_seconds)
        self.asked = 0
        self.found = 0
        self.in_flight = 0
        self._blocks = blocks
        self._parts = cache.partial_prefix_blocks
        self._waits: dict[Tracked, _Wait] = {}
        self._counted: set[Tracked] = set()

    @property
    def deferred(self) -> int:
        """Requests that wait for what another one is about to compute."""
        return sum(wait.lasts for wait in self._waits.values())

    def start(self, request: Tracked, running: Sequence[Tracked], *, parts: bool = True) -> Start | None:
        """With what a request begins; None: it waits for blocks that one of `running` is about to compute.

        At least its last known token is left to compute: the next one is drawn from its logits. `parts` False: it
        begins behind a whole block.
        """
        tree, keys, wait = self._blocks.tree, request.takes, self._waits.get(request)
        told = request in self._counted or request.asked.parent is not None
        if tree is None or keys is None:
            return Start(lookup=None if told else Lookup("disabled"))
        if wait is not None and wait.lasts:
            return None
        size = self._blocks.block_size
        most = (request.total - 1) // size
        nodes = tree.match(keys, most)
        found = len(nodes) if wait is None else wait.found
        end = nodes[-1] if nodes else tree.root_of(keys.namespace)
        if len(nodes) < most:
            ahead = self._ahead(end, keys, len(nodes), running)
            if ahead is not None:
                until = self._common(keys, ahead, len(nodes), most)
                self._waits[request] = _Wait(ahead, until, found)
                return None
        ready = next((place for place, node in enumerate(nodes) if not node.computed), len(nodes))
        tokens, origin = self._part(end, keys.part(len(nodes))) if parts and self._parts else (0, None)
        cached = len(nodes) * size + tokens
        return Start(
            self._held(nodes, cached),
            cached,
            source=tuple(origin.blocks) if origin is not None else (),
            in_flight=(len(nodes) - min(ready, found)) * size,
            origin=origin,
            lookup=None if told else explain(tree, keys, nodes, most, cached, size),
        )

    def _part(self, end: Node, part: bytes) -> tuple[int, Node | None]:
        """How many of the first tokens in `part` stand in a block behind `end` that can be copied, and in which."""
        least = least_part(self._blocks.block_size)
        for shared, node in islice(end.alike(part), MOST_LOOKED_AT):
            tokens = shared // TOKEN_BYTES
            # All that is wanted is worth it where it is less: nothing of the block is computed then.
            if not tokens or (tokens < least and shared < len(part)):
                break
            if node.computed and NULL_BLOCK not in node.blocks:
                return tokens, node
        return 0, None

    def _held(self, nodes: Sequence[Node], cached: int) -> Held:
        """The nodes' blocks, of each group those that the token at index `cached` sees."""
        size, held = self._blocks.block_size, []
        for number, group in enumerate(self._blocks.groups):
            first = first_block(group.window, cached, size)
            held.append(tuple(NULL_BLOCK if i < first else node.blocks[number] for i, node in enumerate(nodes)))
        return tuple(held)

    def cached(self, request: Tracked) -> int:
        """Leading tokens that stand in the tree now, of those that the request may take."""
        tree, keys = self._blocks.tree, request.takes
        if tree is None or keys is None:
            return 0
        size = self._blocks.block_size
        return len(tree.match(keys, (request.total - 1) // size)) * size

    def began(self, request: Tracked, start: Start) -> None:
        """A request that asked begins with what it found."""
        self._waits.pop(request, None)
        if request in self._counted or request.asked.parent is not None:
            return
        self._counted.add(request)
        if request.takes is not None and self._blocks.tree is not None:
            self.asked += request.asked.prompt
            self.found += start.cached
            self.in_flight += start.in_flight

    def over(self, request: Tracked) -> None:
        """A request ended; it still has its blocks."""
        self._waits.pop(request, None)
        self._counted.discard(request)
        tree, keys, name = self._blocks.tree, request.gives, request.asked.session
        if tree is None or keys is None:
            return
        tail = self._enter_tail(request, tree, keys) if self._parts else None
        if name is None:
            return
        size = self._blocks.block_size
        nodes = list(takewhile(lambda node: node.computed, tree.match(keys, request.computed // size)))
        whole = len(nodes) * size  # a tail is found from the end of what is before it
        if tail is not None and tail.parent is (nodes[-1] if nodes else tree.root_of(keys.namespace)):
            nodes.append(tail)
        if nodes:
            self.sessions.keep(name, self._held(nodes, whole))

    def _enter_tail(self, request: Tracked, tree: PrefixTree, keys: BlockKeys) -> Node | None:
        """The block that a request that is over has filled in part enters the tree, with all before it there; or the
        one that is there with the same tokens.
        """
        table, size = request.table, self._blocks.block_size
        count = min(request.computed, request.total - 1) - table.depth * size
        if table.node is None or not 0 < count < size or table.num_blocks <= table.depth:
            return None
        key = keys.part(table.depth)[: count * TOKEN_BYTES]
        entered = tree.insert(table.node, key, [blocks[table.depth] for blocks in table.blocks])
        if entered is None:
            return table.node.children.get(key)
        entered.computed = True
        return entered

    def describe(self, wanted: Wanted) -> dict[str, object]:
        """The shape of the memory, and what of it sessions hold, as JSON has it."""
        sessions = {"open": len(self.sessions), "blocks": self.sessions.num_blocks, "given_up": self.sessions.given_up}
        return {**shape(self._blocks, wanted), "sessions": sessions}

    def _ahead(self, node: Node, keys: BlockKeys, depth: int, running: Sequence[Tracked]) -> Tracked | None:
        """Who will compute the block behind `node` that the keys name."""
        size, key = self._blocks.block_size, None
        for other in running:
            if other.table.node is node and (depth + 1) * size <= other.total and (theirs := other.gives) is not None:
                key = key or keys.key(depth)
                if theirs.key(depth) == key:
                    return other
        return None

    def _common(self, keys: BlockKeys, ahead: Tracked, depth: int, most: int) -> int:
        """How many leading blocks both have, known to be more than `depth`; at most `most`."""
        theirs = ahead.gives
        assert theirs is not None
        until, most = depth + 1, min(most, ahead.total // self._blocks.block_size)
        while until < most and keys.key(until) == theirs.key(until):
            until += 1
        return until
