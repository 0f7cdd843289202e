"""BlockTable: the blocks of one request in all KV groups, in order. It asks for blocks and hands them back.

Invariant: in each group the token at index i stands in entry i // block_size, at place i % block_size, unless the entry
is behind the group's window: then it is the null block. The first `depth` entries are a path of the prefix tree that
ends at `node`; those behind are the request's own.
"""

from collections.abc import Sequence

from pelton.kv.blocks import Blocks
from pelton.kv.group import Held, first_block, most_blocks
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import BlockKeys


class BlockTable:
    """Grows by whole blocks and is emptied at once. `node` None: no more of its blocks enter the tree."""

    __slots__ = ("_adopted", "_blocks", "_passed", "_root", "_source", "depth", "node")

    def __init__(self, source: Blocks, namespace: bytes = b"") -> None:
        """`namespace`: of what will enter the tree (see BlockKeys)."""
        self._source = source
        self._blocks: list[list[int]] = [[] for _ in source.groups]
        self._passed = [0] * len(source.groups)  # entries behind the window
        self._adopted = 0  # entries it began with
        self.depth = 0
        self._root = source.tree.root_of(namespace) if source.tree is not None else None
        self.node: Node | None = self._root

    @property
    def blocks(self) -> Held:
        return tuple(tuple(blocks) for blocks in self._blocks)

    @property
    def num_blocks(self) -> int:
        """Entries, those behind a window included."""
        return len(self._blocks[0])

    @property
    def capacity(self) -> int:
        """Tokens the present entries stand for."""
        return self.num_blocks * self._source.block_size

    def needed(self, tokens: int) -> int:
        """Entries to add before the first `tokens` tokens have a place."""
        return max(0, -(-tokens // self._source.block_size) - self.num_blocks)

    def wanted(self, tokens: int, step: int) -> tuple[int, ...]:
        """Blocks of each group that it will hold at most beside the present ones, until `tokens` tokens are computed
        in steps of up to `step`.
        """
        added, size = self.needed(tokens), self._source.block_size
        wanted = []
        for number, group in enumerate(self._source.groups):
            if group.window is None:
                wanted.append(added)
                continue
            # What others hold too is not free again when the window has passed it.
            most = most_blocks(group.window, tokens, step, size)
            own = self._source.alone(number, self._blocks[number][self._passed[number] :])
            wanted.append(min(added, most - own))
        return tuple(wanted)

    def adopt(self, held: Held, mixed: int = 0, node: Node | None = None) -> None:
        """Begins with these full blocks, which are the table's from now on: the caller took a reference for it.

        Of the last `mixed` of them some groups lack theirs, which `restore` adds. `node`: that of the last one before
        these, for a path that has no block there any more; None: it is found by its blocks.
        """
        assert not self.num_blocks, f"the table has {self.num_blocks} blocks already"
        if not held or not held[0]:
            return
        self._blocks = [list(blocks) for blocks in held]
        self._passed = [sum(block == NULL_BLOCK for block in blocks) for blocks in held]
        self._adopted = self.num_blocks
        self.depth = self._adopted - mixed
        if not self.depth:
            return
        last = self.depth - 1
        found = [self._source.tree.at(number, blocks[last]) for number, blocks in enumerate(held) if self._source.tree]
        self.node = next((one for one in found if one is not None), node)

    def restore(self, computed: int, *, found: bool = False) -> Held | None:
        """Takes a block for every entry up to that of the last of `computed` tokens that has none and that the token at
        index `computed` sees: its content comes from elsewhere. `found`: it is what others may find, too; else the
        request's own. Returns those blocks, or None (nothing changed) where too few are there.
        """
        size = self._source.block_size
        entries = max(self.num_blocks, -(-computed // size))
        empty = []
        for group, blocks in zip(self._source.groups, self._blocks, strict=True):
            first = min(entries, first_block(group.window, computed, size))
            empty.append([i for i in range(first, entries) if i >= len(blocks) or blocks[i] == NULL_BLOCK])
        added = self._source.alloc([len(places) for places in empty])
        if added is not None:
            for number, (blocks, places, more) in enumerate(zip(self._blocks, empty, added, strict=True)):
                blocks += [NULL_BLOCK] * (entries - len(blocks))
                for place, block in zip(places, more, strict=True):
                    blocks[place] = block
                window = self._source.groups[number].window
                self._passed[number] = min(entries, first_block(window, computed, size))
            self._adopted = max(self._adopted, computed // size if found else 0)
        return added

    def grow(self, tokens: int) -> Held | None:
        """Takes what `tokens` tokens need; returns the added blocks, or None (nothing changed) if too few are there."""
        count = self.needed(tokens)
        if not count:
            return ()
        added = self._source.alloc(count)
        if added is not None:
            for blocks, more in zip(self._blocks, added, strict=True):
                blocks += more
        return added

    def slide(self, computed: int) -> None:
        """Gives back what no token from index `computed` on sees.

        What it computed itself is wanted by few: a prefix is found by its end. What it found may be found again.
        """
        for number, group in enumerate(self._source.groups):
            if group.window is None:
                continue
            blocks, passed = self._blocks[number], self._passed[number]
            first = min(first_block(group.window, computed, self._source.block_size), len(blocks))
            if first > passed:
                gone, blocks[passed:first] = blocks[passed:first], [NULL_BLOCK] * (first - passed)
                self._passed[number] = first
                found = max(0, self._adopted - passed)
                self._source.give_back(number, gone[:found])
                self._source.give_back(number, gone[found:], cold=True)

    def fills(self, tokens: int) -> bool:
        """Whether the first `tokens` tokens fill a block that could enter the tree and has not."""
        return self.node is not None and (self.depth + 1) * self._source.block_size <= tokens

    def enter(self, keys: BlockKeys, tokens: int) -> list[Node]:
        """Blocks that the first `tokens` tokens fill enter the tree, not computed yet; returns their nodes.

        Where another request's equal block is there already, this one and all later ones stay out of it (but see
        PrefixTree.insert).
        """
        entered, tree = list[Node](), self._source.tree
        while tree is not None and self.node is not None and self.fills(tokens):
            blocks = [blocks[self.depth] for blocks in self._blocks]
            self.node = tree.insert(self.node, keys.key(self.depth), blocks)
            if self.node is not None:
                self.depth += 1
                entered.append(self.node)
        return entered

    def path(self) -> Sequence[Node]:
        """Nodes of the first `depth` entries that are known to it, from the first on; none once `node` is None."""
        nodes, node = list[Node](), self.node
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def check(self, computed: int) -> None:
        """Asserts that, with `computed` tokens computed, it holds what these see of each group and nothing before."""
        for group, blocks, passed in zip(self._source.groups, self._blocks, self._passed, strict=True):
            first = min(first_block(group.window, computed, self._source.block_size), len(blocks))
            assert passed == first, f"{passed} entries given up, {first} are behind the window of {group.window}"
            assert not any(blocks[:passed]) and all(blocks[passed:]), f"a block is held, or missing, in {blocks}"

    def release(self, keep: int = 0) -> None:
        """Gives blocks back, the last one first: all, or those behind the first `keep` entries, nothing of which is
        computed yet or in the tree.
        """
        held = self.blocks
        if keep:
            assert keep >= self.depth
            self._blocks = [list(blocks[:keep]) for blocks in held]
            self._source.release(tuple(blocks[keep:] for blocks in held))
            return
        self._blocks = [[] for _ in held]
        self._passed = [0] * len(held)
        self.depth = self._adopted = 0
        self.node = self._root
        self._source.release(held)
