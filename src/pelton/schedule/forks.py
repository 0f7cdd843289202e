"""Forks: further answers to a prompt (n > 1) wait until its first request has computed it, then share its blocks.

They hold the blocks meanwhile, so the first request may end or lose its place. A part-filled last block is copied when
a child begins (copy on write). Invariant: a family holds one reference on each of its blocks while it has children.
"""

from dataclasses import dataclass, field

from pelton.kv.blocks import Blocks
from pelton.kv.group import Held, first_block
from pelton.kv.pool import NULL_BLOCK
from pelton.schedule.tracked import Start, Tracked


@dataclass(slots=True, eq=False)
class Family:
    """`children` wait for what `parent` computes, or, once it has, for their turn: `blocks` then are held for them.

    `blocks` cover the prompt without its last token, which each child computes itself to draw from its logits.
    """

    parent: Tracked
    children: list[Tracked] = field(default_factory=list)
    blocks: Held = ()


class Forks:
    """All families. A child leaves its family when it begins, and is an ordinary request from then on."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._by_parent: dict[Tracked, Family] = {}
        self._by_child: dict[Tracked, Family] = {}

    def join(self, child: Tracked, parent: Tracked) -> None:
        """ValueError where the prompts cannot be the same."""
        if child.asked.prompt != parent.asked.prompt:
            raise ValueError(f"{child.request_id} has {child.asked.prompt} prompt tokens, not {parent.asked.prompt}")
        family = self._by_parent.setdefault(parent, Family(parent))
        family.children.append(child)
        self._by_child[child] = family
        self.computed(parent)

    def family(self, child: Tracked) -> Family | None:
        """The family in which a request waits; None for an ordinary one."""
        return self._by_child.get(child)

    def start(self, family: Family) -> Start | None:
        """With what a child begins; None while the prompt is still being computed."""
        if not family.blocks:
            return None
        cached = family.parent.asked.prompt - 1
        full = cached // self._blocks.block_size
        partial = full < len(family.blocks[0])
        source = tuple(blocks[full] for blocks in family.blocks) if partial else ()
        return Start(tuple(blocks[:full] for blocks in family.blocks), cached, source)

    def computed(self, parent: Tracked) -> None:
        """Where a request has computed its whole prompt, those who wait for it get hold of the blocks."""
        family = self._by_parent.get(parent)
        if family is None or family.blocks or parent.computed < parent.asked.prompt:
            return
        blocks = self._kept(parent)
        if blocks is None:
            self._part(family)
            return
        family.blocks = blocks
        self._blocks.share(blocks)

    def _kept(self, parent: Tracked) -> Held | None:
        """Blocks with all that the prompt's last token sees; None where there are none, or no longer."""
        last, size = parent.asked.prompt - 1, self._blocks.block_size
        entries, held = self._blocks.needed(last), []
        for group, blocks in zip(self._blocks.groups, parent.table.blocks, strict=True):
            first = first_block(group.window, last, size)
            if NULL_BLOCK in blocks[first:entries]:
                return None
            held.append((*[NULL_BLOCK] * min(first, entries), *blocks[first:entries]))
        return tuple(held) if entries else None

    def over(self, request: Tracked) -> None:
        """A request ended: who still waits for its prompt goes on alone, and so does it."""
        family = self._by_parent.get(request)
        if family is not None and not family.blocks:
            self._part(family)
        self._blocks.release(self.leave(request))

    def distrust(self, request: Tracked) -> None:
        """What a request computed is not to be trusted: nobody begins with it any more, whoever holds it."""
        family = self._by_parent.get(request)
        if family is not None:
            self._blocks.release(self._part(family))
        self._blocks.release(self.leave(request))

    def leave(self, child: Tracked) -> Held:
        """A child leaves its family; returns the blocks to give back for it: the family's, where it was the last."""
        family = self._by_child.pop(child, None)
        if family is None:
            return ()
        family.children.remove(child)
        return () if family.children else self._part(family)

    def give_back(self, force: bool = False) -> bool:
        """Gives up blocks of the family that is last in rank of those where it frees a block, or of all with `force`.

        False where there is none. The children then look for their prompt in the tree or compute it.
        """
        holding = [family for family in self._by_parent.values() if family.blocks]
        # Whoever else holds the last block holds those before it too.
        helping = [family for family in holding if force or self._blocks.sole(family.blocks)]
        for family in helping if force else sorted(helping, key=lambda family: family.parent.rank)[-1:]:
            self._blocks.release(self._part(family))
        return bool(helping)

    @property
    def deferred(self) -> int:
        """Children whose prompt is still being computed."""
        return sum(len(family.children) for family in self._by_parent.values() if not family.blocks)

    def waste(self) -> int:
        """Token places without a token in blocks that only families hold."""
        size = self._blocks.block_size
        empty = ((1 - family.parent.asked.prompt) % size for family in self._alone())
        return sum(empty)

    def check(self) -> list[tuple[int, int]]:
        """Asserts that families and children agree; returns what is held (group, block), an entry a reference."""
        children = {id(child) for family in self._by_parent.values() for child in family.children}
        assert children == {id(child) for child in self._by_child}
        assert all(family.children for family in self._by_parent.values()), "a family without children"
        for child in self._by_child:
            assert child.row is None, f"{child.request_id} runs and waits for a prompt"
        held = (family.blocks for family in self._by_parent.values())
        return [(group, block) for groups in held for group, blocks in enumerate(groups) for block in blocks if block]

    def _alone(self) -> list[Family]:
        return [family for family in self._by_parent.values() if family.blocks and self._blocks.sole(family.blocks)]

    def _part(self, family: Family) -> Held:
        """The family is no more, its children are ordinary requests; returns the blocks it held."""
        for child in family.children:
            del self._by_child[child]
        family.children.clear()
        del self._by_parent[family.parent]
        blocks, family.blocks = family.blocks, ()
        return blocks
