"""Slots: a session's blocks are saved to one file, and put back from it, by an engine that goes on meanwhile.

Blocks are copied between two steps, a few at a time; a thread reads, checks and writes. Invariant: what is held for a
session is part of what was computed for it, to the bit, wherever its blocks have been in between.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from pelton.backends.backend import BlockOps, Executable
from pelton.core.clock import Clock
from pelton.core.errors import PeltonError, RequestError
from pelton.engine.memory.errands import Errand
from pelton.kv.group import Held
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.tiers.chain import nodes_of, tokens_of
from pelton.kv.tiers.slot_file import BAD_FILE, BUSY, EMPTY, NO_ROOM, SlotReader, SlotWriter
from pelton.schedule.holdings import Holdings
from pelton.schedule.sessions import SHARE, Name
from pelton.schedule.tiers.tiers import overwrite

MOST_BYTES = 32 << 20  # are copied at a time: a step that is due waits for some milliseconds
AGAIN = "Try again."

Place = tuple[int, int]  # an entry of the path, and a KV group


class Slots:
    """Saves and restores sessions of the engine whose `holdings` these are.

    `fingerprint`: see memory/disk.py; asked for in the thread, as it may take a while. `namespace`: that of requests
    with a salt.
    """

    def __init__(
        self,
        holdings: Holdings,
        executable: Executable,
        fingerprint: Callable[[], bytes],
        namespace: Callable[[str], bytes],
        clock: Clock,
    ) -> None:
        self._holdings = holdings
        self._executable = executable
        self._fingerprint = fingerprint
        self._namespace = namespace
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pelton-slots")

    def save(self, session: Name, path: Path) -> Errand:
        """What is held for the session goes to a file. JSON with n_saved tokens, n_written bytes, and the time it took.

        RequestError where nothing is held, a request of the session is open or comes meanwhile, or the path is a
        folder; PeltonError where the file cannot be written.
        """
        began, sessions = self._clock.now(), self._holdings.sessions
        self._expect_idle(session)
        held, nodes, places = self._kept(session)
        writer = SlotWriter(path)
        try:
            yield self._thread.submit(lambda: writer.open(self._fingerprint()))
            for piece in pieces(places, self._executable.block_bytes):
                if sessions.held(session) is not held:
                    raise _changed()
                content = self._executable.blocks().content
                copies = [content(group, held[group][entry]).tobytes() for entry, group in piece]
                yield self._thread.submit(writer.add, copies)
            keys = tuple(node.key for node in nodes)
            sizes = tuple(self._executable.block_bytes)
            written = yield self._thread.submit(writer.finish, self._namespace(session[0]), sizes, keys, places)
        except IsADirectoryError as error:
            cause = f"filename={path.name!r} is a folder there."
            raise RequestError(cause, "Give another name.", param="filename") from error
        except OSError as error:
            raise PeltonError(
                f"The slot was not saved as {path.name}: {error.strerror or error}.",
                "Look at the folder of slot_save_path: it must be there, with room on its disk.",
            ) from error
        finally:
            self._later(writer.close)
        return self._told("save", began, n_saved=tokens_of(keys), n_written=written)

    def restore(self, session: Name, path: Path) -> Errand:
        """What a file has is held for the session, in place of what was. JSON with n_restored tokens, n_read bytes, and
        the time it took.

        RequestError for a file that is not to be trusted or has no room, in which case nothing of it is held, and where
        a request of the session is open or comes meanwhile.
        """
        began, sessions, ops = self._clock.now(), self._holdings.sessions, self._executable.blocks()
        self._expect_idle(session)
        reader: SlotReader = yield self._thread.submit(self._open, path)
        foot, waking = reader.foot, None
        try:
            if foot.namespace != self._namespace(session[0]):
                cause = f"{path.name} was saved under another cache_salt."
                raise RequestError(cause, "Give that one.", param="cache_salt")
            places = [(entry, group) for entry, group, _ in foot.contents]
            self._expect_room(path, places)
            waking = Waking(self._holdings, session, foot.namespace, foot.keys)
            for piece in pieces(places, foot.block_bytes):
                contents = yield self._thread.submit(reader.read, len(piece))
                self._expect_idle(session)
                waking.put(dict(zip(piece, contents, strict=True)), ops)
        except (ValueError, NoRoomError) as error:
            if waking is not None and waking.entries:
                sessions.end(session)
            if isinstance(error, ValueError):
                raise _bad_file(path, error) from error
            cause = f"There is no room for the blocks of {path.name} now: requests hold too many."
            raise RequestError(cause, AGAIN, code=NO_ROOM) from error
        finally:
            self._later(reader.close)
        return self._told("restore", began, n_restored=self._holdings.tokens(session), n_read=reader.size)

    def close(self) -> None:
        """What is under way is finished; then it is over. Twice is no error."""
        self._thread.shutdown()

    def _open(self, path: Path) -> SlotReader:
        try:
            return SlotReader(path, self._fingerprint(), self._executable.block_bytes)
        except OSError as error:
            raise RequestError(
                f"{path.name} cannot be read: {error.strerror or error}.",
                "Give the name of a slot that was saved.",
                param="filename",
                code=BAD_FILE,
            ) from error
        except ValueError as error:
            raise _bad_file(path, error) from error

    def _kept(self, session: Name) -> tuple[Held, list[Node], list[Place]]:
        """What is held for a session, the path of that, and where on it there are blocks."""
        held, tree = self._holdings.sessions.held(session), self._holdings.blocks.tree
        nodes = [] if held is None or tree is None else nodes_of(tree, held)
        places = [
            (entry, group)
            for entry in range(len(nodes))
            for group, blocks in enumerate(held or ())
            if blocks[entry] != NULL_BLOCK
        ]
        if held is None or not places:
            raise RequestError(
                "Nothing is held for this slot.",
                "Send a request with its id_slot first; what is held is let go after session_seconds.",
                code=EMPTY,
            )
        return held, nodes[: places[-1][0] + 1], places

    def _expect_idle(self, session: Name) -> None:
        if self._holdings.blocks.tree is None:
            raise RequestError("Without a prefix cache no slot holds anything.", "Leave enable_prefix_caching on.")
        request = self._holdings.request_of(session)
        if request is not None:
            raise RequestError(f"Request {request} of this slot is not over.", "Wait for its end.", code=BUSY)

    def _expect_room(self, path: Path, places: Sequence[Place]) -> None:
        for group, total in enumerate(self._holdings.blocks.total):
            wanted = sum(group == one for _, one in places)
            if wanted > SHARE * total:
                raise RequestError(
                    f"{path.name} has {wanted} blocks, and sessions may hold {int(SHARE * total)} of the {total} there "
                    "are.",
                    "Give more memory by kv_cache_memory_bytes or num_blocks.",
                    code=NO_ROOM,
                )

    def _later(self, close: Callable[[], None]) -> None:
        """Closes a file in its thread, or here where that is over."""
        try:
            self._thread.submit(close)
        except RuntimeError:
            close()

    def _told(self, what: str, began: float, **counts: int) -> bytes:
        took = 1000 * (self._clock.now() - began)
        return msgspec.json.encode({**counts, "timings": {f"{what}_ms": round(took, 3)}})


class NoRoomError(Exception):
    """Too few blocks are available."""


class Waking:
    """A path in the making: `entries` of its `keys` are in the tree, and held for the session."""

    def __init__(self, holdings: Holdings, session: Name, namespace: bytes, keys: Sequence[bytes]) -> None:
        blocks = holdings.blocks
        assert blocks.tree is not None
        self.entries = 0
        self._holdings = holdings
        self._blocks = blocks
        self._tree = blocks.tree
        self._sessions = holdings.sessions
        self._session = session
        self._keys = keys
        self._node = blocks.tree.root_of(namespace)
        self._held: list[list[int]] = [[] for _ in blocks.groups]
        self._kept: Held | None = None

    def put(self, contents: Mapping[Place, bytes], ops: BlockOps) -> None:
        """The next blocks, up to the last of these contents. What the tree has already is taken from there.

        NoRoomError where too few blocks are available, RequestError where what was put before is not held any more;
        nothing is changed then.
        """
        held_still = self._kept is not None and self._sessions.held(self._session) is self._kept
        if self.entries and not (held_still and self._node.attached):
            raise _changed()
        blocks, until = self._blocks, 1 + max(entry for entry, _ in contents)
        there = self._there(contents, until)
        found = tuple(tuple(block for (_, one), block in there.items() if one == group) for group in self._groups)
        blocks.share(found)  # so that they stay while others are handed out
        places = [place for place in contents if place not in there]
        added = blocks.alloc([sum(group == one for _, one in places) for group in self._groups], overwritten=True)
        if added is None:
            blocks.release(found)
            raise NoRoomError
        fresh = [iter(own) for own in added]
        given = {(entry, group): next(fresh[group]) for entry, group in places}
        overwrite(self._holdings.tiers, {(group, block) for (_, group), block in given.items()})
        try:
            for place, block in given.items():
                ops.write(place[1], block, contents[place])
            for entry in range(self.entries, until):
                if not self._enter(entry, [given.get((entry, group), NULL_BLOCK) for group in self._groups]):
                    break
                for group, held in enumerate(self._held):
                    held.append(self._node.blocks[group] if (entry, group) in contents else NULL_BLOCK)
            self.entries = until
            self._sessions.keep(self._session, tuple(map(tuple, self._held)))
            self._kept = self._sessions.held(self._session)
        finally:
            blocks.release(found)
            blocks.release(added)

    @property
    def _groups(self) -> range:
        return range(len(self._held))

    def _enter(self, entry: int, row: list[int]) -> bool:
        """The next node, with these blocks where it lacks some. False: another block has what this last one has."""
        key = self._keys[entry]
        if key not in self._node.children or any(row):
            made = self._tree.insert(self._node, key, row)
            if made is None:
                return False
            made.computed = True
        self._node = self._node.children[key]
        return True

    def _there(self, contents: Mapping[Place, bytes], until: int) -> dict[Place, int]:
        """Blocks that the tree has in these places."""
        path, node = list[Node](), self._node
        for key in self._keys[self.entries : until]:
            if key not in node.children:
                break
            node = node.children[key]
            path.append(node)
        held = ((place, path[place[0] - self.entries]) for place in contents if place[0] - self.entries < len(path))
        return {place: node.blocks[place[1]] for place, node in held if node.blocks[place[1]] != NULL_BLOCK}


def pieces(places: Sequence[Place], sizes: Sequence[int]) -> Iterator[list[Place]]:
    """The places in their order, some at a time: whole entries, of MOST_BYTES where one entry takes no more."""
    piece, taken = list[Place](), 0
    for number, (entry, group) in enumerate(places):
        if piece and piece[-1][0] != entry:
            rest = sum(sizes[one] for other, one in places[number : number + len(sizes)] if other == entry)
            if taken + rest > MOST_BYTES:
                yield piece
                piece, taken = [], 0
        piece.append((entry, group))
        taken += sizes[group]
    if piece:
        yield piece


def _changed() -> RequestError:
    return RequestError("The slot was used meanwhile, or what it held was needed by requests.", AGAIN, code=BUSY)


def _bad_file(path: Path, reason: ValueError) -> RequestError:
    remedy = "Save the slot again, and restore it with the model and settings that it was saved with."
    return RequestError(f"{path.name} is not used: {reason}.", remedy, param="filename", code=BAD_FILE)
