"""What the scheduler is told of a request, and what it knows of one: lengths, place and blocks. No tokens.

Invariant: a request that waits has no blocks in its table and nothing computed.
"""

from dataclasses import dataclass

from pelton.core.plan import Lookup
from pelton.kv.group import Held
from pelton.kv.node import Node
from pelton.kv.prefix import BlockKeys
from pelton.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request of `prompt` tokens. `keys` None: it shares no prefix.

    `parent`: id of an open request with the same prompt, of which this one is another answer: the prompt is computed
    once. `scored`: log-probabilities of its prompt are wanted, so all of it is computed. `arrival` in seconds.
    `settles`: once so many tokens of the answer are drawn, each next one can be drawn with no decision before it; None:
    never. `owner`: whose it is, for orders that share between owners. `session`: what is computed for it is held under
    this name when it is over (see Sessions).
    """

    request_id: str
    prompt: int
    max_tokens: int
    priority: int = 0
    arrival: float = 0.0
    keys: BlockKeys | None = None
    parent: str | None = None
    scored: bool = False
    settles: int | None = None
    owner: str = ""
    session: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What a request finds computed: `blocks` full ones to share, and the start of a block to copy from `source`.

    `source`: that block in each KV group, or nothing; `origin`: its node, where it is in the prefix tree. `cached`
    tokens in all, of which `in_flight` were being computed by another request when it asked. `lookup`: why there are no
    more, where that is to be told.

    `loads`: host slots (group, slot) whose content goes into new blocks: of each group in turn those that it lacks up
    to that of the last cached token, in the order of the entries. Some groups may lack theirs within the last `mixed`
    of `blocks` already. `node`: that of the last entry before these, where the loads are what the prefix tree had once;
    None: they are the request's own.
    """

    blocks: Held = ()
    cached: int = 0
    source: tuple[int, ...] = ()
    in_flight: int = 0
    origin: Node | None = None
    lookup: Lookup | None = None
    loads: tuple[tuple[int, int], ...] = ()
    mixed: int = 0
    node: Node | None = None

    @property
    def full(self) -> int:
        """How many blocks of tokens are shared."""
        return len(self.blocks[0]) - self.mixed if self.blocks else 0

    @property
    def copied(self) -> Held:
        """`source` as a table of one block."""
        return tuple((block,) for block in self.source)


@dataclass(slots=True, eq=False)
class Tracked:
    """One request. `total` tokens are known (prompt and drawn ones), the first `computed` of them stand in the cache.

    `number` counts requests in the order they were added; `rank`: smaller goes first. `row` is None while the request
    waits. `shared` leading blocks were written by others, `copied`: so was a part of the next one, which was copied
    from `origin` if that was in the prefix tree. The first `served` tokens were told to the order. `private`: it takes
    nothing from others and gives nothing, since what it took may have been bad: `suspects`.
    """

    asked: NewRequest
    number: int
    rank: tuple[float, ...]
    table: BlockTable
    total: int
    computed: int = 0
    row: int | None = None
    shared: int = 0
    copied: bool = False
    served: int = 0
    origin: Node | None = None
    private: bool = False
    suspects: tuple[Node, ...] = ()

    @property
    def request_id(self) -> str:
        return self.asked.request_id

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return self.total - self.computed

    @property
    def gives(self) -> BlockKeys | None:
        """The keys under which its blocks enter the tree; None: they stay out of it."""
        return None if self.private else self.asked.keys

    @property
    def takes(self) -> BlockKeys | None:
        """The keys by which it looks for blocks of others; None: it takes none."""
        return None if self.private or self.asked.scored else self.asked.keys
