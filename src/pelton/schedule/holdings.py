"""Holdings: who holds how much of the KV memory: requests, sessions and slots. For people and JSON; it changes nothing.

A slot, in the shape of llama.cpp's server, is the session of its name (core.request.slot_session). Invariant: what is
left out is counted.
"""

from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain, islice
from secrets import token_bytes

from pelton.core.request import slot_of
from pelton.kv.blocks import Blocks
from pelton.kv.group import Held
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.tiers.chain import nodes_of, tokens_of
from pelton.schedule.places import Places
from pelton.schedule.sessions import Name, Sessions
from pelton.schedule.tiers.swap import slots_of
from pelton.schedule.tiers.tiers import Tiers
from pelton.schedule.tracked import Tracked

SHOWN_BYTES = 6  # of the digest in place of a name
_KEY = token_bytes(16)  # of these digests: nobody finds a name by trying

Json = dict[str, object]


class Holdings:
    """`blocks`, `sessions` and `tiers` are those that it tells of."""

    def __init__(self, places: Places, blocks: Blocks, sessions: Sessions, tiers: Tiers) -> None:
        self.blocks = blocks
        self.sessions = sessions
        self._places = places
        self.tiers = tiers

    def request_of(self, session: Name) -> str | None:
        """An open request of the session."""
        return next((one.request_id for one in self._open() if one.asked.session == session), None)

    def tokens(self, session: Name) -> int:
        """How many tokens are held for a session."""
        held = self.sessions.held(session)
        return 0 if held is None else self._tokens(held)

    def describe(self, most: int, *, names: bool = False) -> Json:
        """Up to `most` requests, those that run first, and as many sessions, those used last first.

        `names`: sessions by their names. These are clients' own: without it a digest is told, unless it is a slot;
        the same one as long as this process lives.
        """
        open_ones = len(self._places.running) + len(self._places.waiting)
        sessions = list(self.sessions.listed())[::-1]
        return {
            "requests": [self._request(one, names) for one in islice(self._open(), most)],
            "requests_left_out": max(0, open_ones - most),
            "held_for": [
                {"session": _shown(name, names), "blocks": _count(held), "tokens": self._tokens(held)}
                for name, held, _ in sessions[:most]
            ],
            "held_for_left_out": max(0, len(sessions) - most),
        }

    def slots(self, count: int, context: int) -> list[Json]:
        """The first `count` slots, with the names of llama.cpp's server, for requests of `context` tokens.

        A running request is in the slot that it names. One that names none, or one that is taken, is shown in the last
        one that nobody is in: so as many are processing as there are requests that run.
        """
        held = [0] * count
        for (_, name), blocks, _ in self.sessions.listed():
            number = slot_of(name)
            if number is not None and number < count:
                held[number] += self._tokens(blocks)
        running: list[Tracked | None] = [None] * count
        others = []
        for request in self._places.running:
            number = _slot(request)
            if number is not None and number < count and running[number] is None:
                running[number] = request
            else:
                others.append(request)
        free = [number for number in range(count - 1, -1, -1) if running[number] is None]
        for number, request in zip(free, others, strict=False):
            running[number] = request
        return [_as_slot(number, context, running[number], held[number]) for number in range(count)]

    def _open(self) -> Iterable[Tracked]:
        return chain(self._places.running, self._places.waiting)

    def _tokens(self, held: Held) -> int:
        tree = self.blocks.tree
        return 0 if tree is None else tokens_of(node.key for node in nodes_of(tree, held))

    def _request(self, request: Tracked, names: bool) -> Json:
        """`blocks` of all groups, of which `own` have no other holder; `tokens` known, `computed` and of its prompt."""
        table = request.table.blocks
        blocks, own = _count(table), sum(self.blocks.alone(group, held) for group, held in enumerate(table))
        session = request.asked.session
        told: Json = {
            "id": request.request_id,
            "state": "waiting" if request.row is None else "running",
            "blocks": blocks,
            "own": own,
            "shared": blocks - own,
            "host_slots": slots_of(self.tiers.swap, request),
            "tokens": request.total,
            "computed": request.computed,
            "prompt": request.asked.prompt,
        }
        return told if session is None else {**told, "session": _shown(session, names)}


def _slot(request: Tracked) -> int | None:
    return None if request.asked.session is None else slot_of(request.asked.session[1])


def _as_slot(number: int, context: int, request: Tracked | None, held: int) -> Json:
    """`n_prompt_tokens`: of what is processed, or held where nothing is."""
    return {
        "id": number,
        "n_ctx": context,
        "speculative": False,
        "is_processing": request is not None,
        "request_id": None if request is None else request.request_id,
        "n_prompt_tokens": held if request is None else request.total,
        "n_prompt_tokens_processed": 0 if request is None else request.computed,
        "n_held": held,
    }


def _shown(session: Name, names: bool) -> str:
    salt, name = session
    if names or slot_of(name) is not None:
        return name
    whole = f"{len(salt)} {salt}{name}".encode("utf-8", "surrogatepass")
    return blake2b(whole, key=_KEY, digest_size=SHOWN_BYTES).hexdigest()


def _count(held: Held) -> int:
    return sum(block != NULL_BLOCK for blocks in held for block in blocks)
