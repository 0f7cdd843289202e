"""Sharing: what a request about to begin finds in the prefix tree, and for whose computing it had better wait.

Invariant: a request waits only for one that runs and will compute a block that it needs next, so that one's next step
brings it nearer; it holds up nobody else meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.kv.blocks import Blocks
from pelton.kv.group import Held, first_block
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import BlockKeys, Node
from pelton.schedule.tracked import Start, Tracked


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
    """

    def __init__(self, blocks: Blocks) -> None:
        self.asked = 0
        self.found = 0
        self.in_flight = 0
        self._blocks = blocks
        self._waits: dict[Tracked, _Wait] = {}
        self._counted: set[Tracked] = set()

    @property
    def deferred(self) -> int:
        """Requests that wait for what another one is about to compute."""
        return sum(wait.lasts for wait in self._waits.values())

    def start(self, request: Tracked, running: Sequence[Tracked]) -> Start | None:
        """With what a request begins; None: it waits for blocks that one of `running` is about to compute.

        At least its last known token is left to compute: the next one is drawn from its logits.
        """
        tree, keys, wait = self._blocks.tree, request.takes, self._waits.get(request)
        if tree is None or keys is None:
            return Start()
        if wait is not None and wait.lasts:
            return None
        size = self._blocks.block_size
        most = (request.total - 1) // size
        nodes = tree.match(keys, most)
        found = len(nodes) if wait is None else wait.found
        if len(nodes) < most:
            ahead = self._ahead(nodes[-1] if nodes else tree.root, keys, len(nodes), running)
            if ahead is not None:
                until = self._common(keys, ahead, len(nodes), most)
                self._waits[request] = _Wait(ahead, until, found)
                return None
        ready = next((place for place, node in enumerate(nodes) if not node.computed), len(nodes))
        in_flight = len(nodes) - min(ready, found)
        return Start(self._held(nodes), len(nodes) * size, in_flight=in_flight * size)

    def _held(self, nodes: Sequence[Node]) -> Held:
        """The nodes' blocks, of each group those that the first token behind them sees."""
        size, held = self._blocks.block_size, []
        for number, group in enumerate(self._blocks.groups):
            first = first_block(group.window, len(nodes) * size, size)
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
        if request.takes is None or self._blocks.tree is None or request.asked.parent is not None:
            return
        if request not in self._counted:
            self._counted.add(request)
            self.asked += request.asked.prompt
            self.found += start.cached
            self.in_flight += start.in_flight

    def over(self, request: Tracked) -> None:
        """A request ended."""
        self._waits.pop(request, None)
        self._counted.discard(request)

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
