"""OpenRequest: where one running request stands, its known tokens, and when it is over by count or by token id.

Knows no text. Invariant: `generated` are the tokens that were told, in order.
"""

from array import array
from dataclasses import dataclass, field

from pelton.backends.backend import FAULT_NO_TOKEN
from pelton.core.events import Event, RequestFinished, TokensGenerated
from pelton.core.plan import RowResult
from pelton.core.request import Request
from pelton.engine.prompts import NOTHING_LEFT
from pelton.runner.runner import FAULTS

NO_TOKEN = FAULTS[FAULT_NO_TOKEN]  # by the request's own wishes; what it computed is good


def namespace_of(coordinates: bytes, salt: str) -> bytes:
    """What must agree for two requests to share blocks: both, each with its length in front."""
    both = (coordinates, salt.encode("utf-8", "surrogatepass"))
    return b"".join(len(one).to_bytes(4, "little") + one for one in both)


@dataclass(slots=True)
class OpenRequest:
    """A request the engine works on; `generated` were drawn for it so far. It is the BlockKeys of its prefix.

    `coordinates`: digest of what its keys and values are computed with (program.coordinates). `namespace`: see
    namespace_of.
    """

    request: Request
    block_size: int
    generated: list[int] = field(default_factory=list)
    coordinates: bytes = b""
    namespace: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.namespace = namespace_of(self.coordinates, self.request.cache_salt)

    def key(self, block: int) -> bytes:
        """The int32 ids of a full block of known tokens."""
        ids = self._ids(block, len(self.request.prompt_token_ids) + len(self.generated))
        assert len(ids) == self.block_size, f"block {block} of {self.request.request_id} has {len(ids)} known tokens"
        return ids.tobytes()

    def part(self, block: int) -> bytes:
        """The int32 ids of those tokens of a block that are known, without the last known one."""
        return self._ids(block, len(self.request.prompt_token_ids) + len(self.generated) - 1).tobytes()

    def _ids(self, block: int, known: int) -> "array[int]":
        prompt, size = self.request.prompt_token_ids, self.block_size
        start, end = block * size, min((block + 1) * size, known)
        ids = array("i", prompt[start:end])
        if end > len(prompt):
            ids.extend(self.generated[max(start - len(prompt), 0) : end - len(prompt)])
        return ids

    def accept(self, result: RowResult, max_len: int) -> list[Event]:
        """Events of one step's result. Tokens after the one that ends the request are dropped and not counted.

        Ends: a stop id ("stop"), then max_tokens or max_len tokens with the prompt ("length"), or a fault ("error").
        With max_tokens 0 that is at the first token drawn, which is not told: the prompt is computed then.
        """
        request = self.request
        if result.fault is not None:
            own = NOTHING_LEFT if result.fault == NO_TOKEN else None
            return [RequestFinished(request.request_id, "error", error=result.fault, code=own)]
        if not result.tokens:
            return []
        room = min(request.max_tokens, max_len - len(request.prompt_token_ids)) - len(self.generated)
        tokens = result.tokens[:room]
        ended: RequestFinished | None = None
        for place, token in enumerate(tokens):
            if token in request.stop_token_ids:
                tokens = tokens[: place + 1]
                ended = RequestFinished(request.request_id, "stop", stop_token=token)
                break
        if ended is None and len(tokens) == room:
            ended = RequestFinished(request.request_id, "length")
        self.generated += tokens
        events: list[Event] = []
        if tokens:
            events.append(TokensGenerated(request.request_id, tokens, result.logprobs[: len(tokens)]))
        if ended is not None:
            events.append(ended)
        return events
