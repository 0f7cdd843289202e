"""Answers: the engine's events turned into RequestOutputs, with text, stop strings and log-probabilities.

Ends no request itself: it names those whose text met a stop string. Invariant: text and tokens behind a stop string
never show, however many tokens one step brought.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pelton.core.events import Event, RequestFinished, RequestScheduled, TokensGenerated
from pelton.core.plan import TokenLogprobs
from pelton.core.request import CompletionOutput, Logprob, Request, RequestMetrics, RequestOutput
from pelton.detokenize.output import OutputText
from pelton.tokenize.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """What came since the last piece: text (no half characters) and token ids. `output`: the whole, once finished."""

    text: str
    token_ids: tuple[int, ...]
    output: RequestOutput | None = None

    @property
    def finished(self) -> bool:
        return self.output is not None


class Answer:
    """One request's answer so far."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.request = request
        self.metrics = RequestMetrics(arrival=request.arrival)
        self._tokenizer = tokenizer
        self._text: OutputText | None = None
        if params.detokenize:
            self._text = OutputText(
                tokenizer,
                stops=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
                prompt_ids=request.prompt_token_ids,
            )
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative = 0.0
        self._cached = 0
        self._error: str | None = None
        self._told = (0, 0)
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def schedule(self, cached: int, now: float) -> None:
        """The request entered a step; only the first time counts."""
        if self.metrics.first_scheduled is None:
            self.metrics.first_scheduled = now
            self._cached = cached

    def take(self, event: TokensGenerated, stop_token: int | None, now: float) -> bool:
        """New tokens; True if their text met a stop string, which ends the answer. `stop_token`: the last one ends it.

        The end token's own text shows only with include_stop_str_in_output.
        """
        if self.metrics.first_token is None:
            self.metrics.first_token = now
        kept = len(event.tokens)
        stop = None
        if self._text is not None:
            hidden = stop_token is not None and not self.request.params.include_stop_str_in_output
            piece = self._text.push(event.tokens[:-1] if hidden else event.tokens)
            self._pieces.append(piece.delta)
            stop = piece.stop
            kept = piece.kept if stop is not None else kept
        self._tokens += event.tokens[:kept]
        if self._logprobs is not None:
            for token, logprobs in zip(event.tokens[:kept], event.logprobs, strict=False):
                self._logprobs.append(self._named(token, logprobs))
                self._cumulative += logprobs.logprob
        if stop is not None:
            self._end("stop", stop, now)
        return stop is not None

    def end(self, event: RequestFinished, now: float) -> bool:
        """The engine ended the request; held-back text comes out. True if it met a stop string, as in take."""
        stop: int | str | None = event.stop_token if event.stop_token in self.request.params.stop_ids else None
        reason, met = event.reason, False
        if self._text is not None:
            rest = self._text.finish()
            self._pieces.append(rest.delta)
            if rest.stop is not None:
                reason, stop, met = "stop", rest.stop, True
        self._error = event.error
        self._end(reason, stop, now)
        return met

    def fail(self, error: str, now: float) -> None:
        """The answer ends as it is."""
        self._error = error
        self._end("error", None, now)

    def piece(self) -> StreamPiece | None:
        """What came since the last call, None if nothing did."""
        pieces, tokens = self._told
        self._told = (len(self._pieces), len(self._tokens))
        text, ids = "".join(self._pieces[pieces:]), tuple(self._tokens[tokens:])
        if not (text or ids or self.finished):
            return None
        return StreamPiece(text, ids, self.output() if self.finished else None)

    def output(self) -> RequestOutput:
        """A record of all so far; later tokens do not change it."""
        request = self.request
        completion = CompletionOutput(
            index=0,
            text="".join(self._pieces),
            token_ids=list(self._tokens),
            cumulative_logprob=None if self._logprobs is None else self._cumulative,
            logprobs=None if self._logprobs is None else list(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )
        assert request.params.seed is not None, f"request {request.request_id} has no seed"
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[completion],
            finished=self.finished,
            seed=request.params.seed,
            metrics=replace(self.metrics),
            num_cached_tokens=self._cached,
            error=self._error,
        )

    def _end(self, reason: str, stop: int | str | None, now: float) -> None:
        self.finish_reason, self._stop_reason = reason, stop
        self.metrics.finished = now

    def _named(self, token: int, logprobs: TokenLogprobs) -> dict[int, Logprob]:
        """The drawn token first, then the likeliest."""
        named = {token: Logprob(logprobs.logprob, logprobs.rank, self._alone(token))}
        for rank, (other, value) in enumerate(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True), 1):
            named.setdefault(other, Logprob(value, rank, self._alone(other)))
        return named

    def _alone(self, token: int) -> str:
        return (self._tokenizer.known_bytes(token) or b"").decode("utf-8", "replace")


class Answers:
    """All answers in the making, by request id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._open: dict[str, Answer] = {}

    def start(self, request: Request) -> Answer:
        answer = self._open[request.request_id] = Answer(request, self._tokenizer)
        return answer

    def drop(self, request_id: str) -> None:
        """Nobody waits for this answer any more; what still comes of it is ignored."""
        self._open.pop(request_id, None)

    def fail_all(self, error: str, now: float) -> None:
        """Every unfinished answer ends with this error."""
        for answer in self._open.values():
            if not answer.finished:
                answer.fail(error, now)

    def take(self, events: Iterable[Event], began: float, now: float) -> tuple[list[Answer], list[str]]:
        """(answers that finished, ids of those that a stop string ended: the engine is to stop them).

        The events are of a step that `began` and is over `now`, in seconds of the engine's clock.
        """
        finished: list[Answer] = []
        stopped: list[str] = []
        told = list(events)
        ends = {event.request_id: event.stop_token for event in told if isinstance(event, RequestFinished)}
        for event in told:
            answer = self._open.get(event.request_id)
            if answer is None or answer.finished:
                continue
            match event:
                case RequestScheduled(cached_tokens=cached):
                    answer.schedule(cached, began)
                case TokensGenerated():
                    if answer.take(event, ends.get(event.request_id), now):
                        stopped.append(event.request_id)
                        finished.append(answer)
                case RequestFinished():
                    if answer.end(event, now):
                        stopped.append(event.request_id)
                    finished.append(answer)
                case _:
                    pass
        return finished, stopped
