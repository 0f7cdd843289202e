"""OpenRequest: where one running request stands, and when it is over by count or by token id. Knows no text."""

from dataclasses import dataclass

from pelton.core.events import Event, RequestFinished, TokensGenerated
from pelton.core.plan import RowResult
from pelton.core.request import Request


@dataclass(slots=True)
class OpenRequest:
    """A request the engine works on; `generated` tokens were drawn for it so far."""

    request: Request
    generated: int = 0

    def accept(self, result: RowResult, max_len: int) -> list[Event]:
        """Events of one step's result. Tokens after the one that ends the request are dropped and not counted.

        Ends: a stop id ("stop"), then max_tokens or max_len tokens with the prompt ("length"), or a fault ("error").
        """
        request = self.request
        if result.fault is not None:
            return [RequestFinished(request.request_id, "error", error=result.fault)]
        room = min(request.max_tokens, max_len - len(request.prompt_token_ids)) - self.generated
        tokens = result.tokens[:room]
        ended: RequestFinished | None = None
        for place, token in enumerate(tokens):
            if token in request.stop_token_ids:
                tokens = tokens[: place + 1]
                ended = RequestFinished(request.request_id, "stop", stop_token=token)
                break
        if ended is None and len(tokens) == room:
            ended = RequestFinished(request.request_id, "length")
        self.generated += len(tokens)
        events: list[Event] = []
        if tokens:
            events.append(TokensGenerated(request.request_id, tokens, result.logprobs[: len(tokens)]))
        if ended is not None:
            events.append(ended)
        return events
