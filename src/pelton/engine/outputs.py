"""Answers: the engine's events turned into RequestOutputs, with text, stop strings and log-probabilities.

Ends no request itself: it names the sequences whose text met a stop string. Invariant: text and tokens behind a stop
string never show, however many tokens one step brought.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pelton.core.errors import RequestError
from pelton.core.events import Event, PromptScored, RequestFinished, RequestScheduled, TokensGenerated
from pelton.core.plan import Lookup, TokenLogprobs
from pelton.core.request import CompletionOutput, Logprob, Request, RequestMetrics, RequestOutput
from pelton.detokenize.output import OutputText
from pelton.tokenize.tokenizer import Tokenizer

Named = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """What came of one of the answers since its last piece: text (no half characters), token ids, their `logprobs`.

    Tokens come no later than their text; where text is held back, they may come before it (see docs/http.md).
    `index` counts the answers of a request. An answer's last piece says why it ended; the last one of the whole request
    has its `output`.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    logprobs: list[Named] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    output: RequestOutput | None = None

    @property
    def finished(self) -> bool:
        """Whether the whole request is."""
        return self.output is not None


class _Sequence:
    """One of a request's answers so far: its text, tokens and log-probabilities, and why it ended."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.request = request
        self._tokenizer = tokenizer
        self._text: OutputText | None = None
        if params.detokenize:
            self._text = OutputText(
                tokenizer,
                stops=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
                prompt_ids=request.prompt_token_ids,
                min_tokens=params.min_tokens,
                granularity=params.stream_granularity,
            )
        # Tokens alone make no piece of a word or a sentence: they come with its text, or that of a later one.
        self._tokens_make_pieces = self._text is None or params.stream_granularity == "token"
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Named] | None = None if params.logprobs is None else []
        self._cumulative = 0.0
        self._told = (0, 0, False)
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, event: TokensGenerated, stop_token: int | None) -> bool:
        """New tokens; True if their text met a stop string, which ends the answer. `stop_token`: the last one ends it.

        The end token's own text shows only with include_stop_str_in_output.
        """
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
                self._logprobs.append(named(token, logprobs, self._tokenizer))
                self._cumulative += logprobs.logprob
        if stop is not None:
            self.end_with("stop", stop)
        return stop is not None

    def end(self, event: RequestFinished) -> bool:
        """The engine ended the sequence; held-back text comes out. True if it met a stop string, as in take."""
        stop: int | str | None = event.stop_token if event.stop_token in self.request.params.stop_ids else None
        reason, met = event.reason, False
        if self._text is not None:
            rest = self._text.finish()
            self._pieces.append(rest.delta)
            if rest.stop is not None:
                reason, stop, met = "stop", rest.stop, True
        self.end_with(reason, stop)
        return met

    def end_with(self, reason: str, stop: int | str | None = None) -> None:
        """The answer ends as it is."""
        self.finish_reason, self._stop_reason = reason, stop

    def piece(self) -> StreamPiece | None:
        """What came since the last piece, None if that makes none yet."""
        pieces, tokens, ended = self._told
        text = "".join(self._pieces[pieces:])
        news = text or (self._tokens_make_pieces and len(self._tokens) > tokens)
        if not (news or self.finished) or ended:
            return None
        self._told = (len(self._pieces), len(self._tokens), self.finished)
        return StreamPiece(
            text,
            tuple(self._tokens[tokens:]),
            index=self.request.child,
            logprobs=None if self._logprobs is None else self._logprobs[tokens:],
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )

    def output(self) -> CompletionOutput:
        """A record of all so far; later tokens do not change it."""
        return CompletionOutput(
            index=self.request.child,
            text="".join(self._pieces),
            token_ids=list(self._tokens),
            cumulative_logprob=None if self._logprobs is None else self._cumulative,
            logprobs=None if self._logprobs is None else list(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )


class Answer:
    """One request's answers so far, all n of them. `sequences` are what the engine knows them as."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.metrics = RequestMetrics(arrival=request.arrival)
        self.sequences = {child.request_id: _Sequence(child, tokenizer) for child in request.children()}
        self._tokenizer = tokenizer
        self._cached = 0
        self._lookup: Lookup | None = None
        self._error: str | None = None
        self._error_code: str | None = None
        self._left = len(self.sequences)
        self._told = False
        # Of index 0 there is none: nothing stands before it.
        self._scores: list[Named | None] | None = None if request.params.prompt_logprobs is None else [None]

    @property
    def finished(self) -> bool:
        """Whether all of the answers are."""
        return not self._left

    @property
    def finish_reason(self) -> str | None:
        """Why the first answer ended; None while it has not."""
        return self.sequences[self.request.request_id].finish_reason

    def take(self, event: Event, stop_token: int | None, began: float, now: float) -> bool:
        """What the engine tells of one of the sequences; True if that one's text met a stop string, which ends it.

        `stop_token`: the last of the event's tokens ends it. The step `began` and is over `now`.
        """
        sequence = self.sequences[event.request_id]
        if sequence.finished:
            return False
        met = False
        match event:
            case RequestScheduled(cached_tokens=cached, lookup=lookup):
                if self.metrics.first_scheduled is None:
                    # The others find what the first one computed, or found.
                    self.metrics.first_scheduled, self._cached, self._lookup = began, cached, lookup
            case PromptScored():
                self._score(event)
            case TokensGenerated():
                if self.metrics.first_token is None:
                    self.metrics.first_token = now
                met = sequence.take(event, stop_token)
            case RequestFinished():
                if self._error is None:
                    self._error, self._error_code = event.error, event.code
                met = sequence.end(event)
            case _:
                pass
        self._count(sequence.finished, now)
        return met

    def fail(self, error: str, now: float) -> None:
        """What is unfinished ends as it is, with this error."""
        for sequence in self.sequences.values():
            if not sequence.finished:
                self._error, self._error_code = error, None
                sequence.end_with("error")
                self._count(True, now)

    def pieces(self) -> list[StreamPiece]:
        """What came since the last call: one piece for each of the answers that has news, by index."""
        pieces = [piece for sequence in self.sequences.values() if (piece := sequence.piece()) is not None]
        if pieces and self.finished and not self._told:
            self._told = True
            pieces[-1] = replace(pieces[-1], output=self.output())
        return pieces

    def output(self) -> RequestOutput:
        """A record of all so far; later tokens do not change it. prompt_logprobs: None until all of them are there."""
        request = self.request
        scores = self._scores
        assert request.params.seed is not None, f"request {request.request_id} has no seed"
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[sequence.output() for sequence in self.sequences.values()],
            finished=self.finished,
            seed=request.params.seed,
            metrics=replace(self.metrics),
            num_cached_tokens=self._cached,
            error=self._error,
            error_code=self._error_code,
            prefix_lookup=self._lookup,
            prompt_logprobs=list(scores) if scores and len(scores) == len(request.prompt_token_ids) else None,
        )

    def _score(self, event: PromptScored) -> None:
        """The actual token first, then the likeliest. After a preemption the same places come again and are let be."""
        scores = self._scores
        if scores is None:
            return
        assert event.start <= len(scores), f"scores from {event.start} on, after {len(scores)}"
        new = event.scores[len(scores) - event.start :]
        tokens = self.request.prompt_token_ids[len(scores) : len(scores) + len(new)]
        scores += [named(token, score, self._tokenizer) for token, score in zip(tokens, new, strict=True)]

    def _count(self, ended: bool, now: float) -> None:
        if ended:
            self._left -= 1
            if self.finished:
                self.metrics.finished = now


class Answers:
    """All answers in the making, by the ids of their sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._open: dict[str, Answer] = {}

    def start(self, request: Request) -> Answer:
        """The answer to a request that joins the engine; RequestError where one of its ids is in use."""
        answer = Answer(request, self._tokenizer)
        for name in answer.sequences:
            if name in self._open:
                raise RequestError(f"Request id {name!r} is in use.", "Ids of open requests must differ.")
        self._open |= dict.fromkeys(answer.sequences, answer)
        return answer

    def drop(self, request_id: str) -> tuple[str, ...]:
        """Nobody waits for this request's answer any more; what still comes of it is ignored.

        The ids of its sequences, which the engine is to abort; none where the request is unknown.
        """
        answer = self._open.get(request_id)
        if answer is None or answer.request.request_id != request_id:
            return ()
        for name in answer.sequences:
            del self._open[name]
        return tuple(answer.sequences)

    def fail_all(self, error: str, now: float) -> None:
        """Every unfinished answer ends with this error."""
        for answer in self._open.values():
            answer.fail(error, now)

    def take(self, events: Iterable[Event], began: float, now: float) -> tuple[list[Answer], list[str]]:
        """(answers that finished, ids of sequences that a stop string ended: the engine is to stop them).

        The events are of a step that `began` and is over `now`, in seconds of the engine's clock.
        """
        finished: list[Answer] = []
        stopped: list[str] = []
        told = list(events)
        ends = {event.request_id: event.stop_token for event in told if isinstance(event, RequestFinished)}
        for event in told:
            answer = self._open.get(event.request_id)
            if answer is None:
                continue
            was = answer.finished
            if answer.take(event, ends.get(event.request_id), began, now):
                stopped.append(event.request_id)
            if answer.finished and not was:
                finished.append(answer)
        return finished, stopped


def named(token: int, logprobs: TokenLogprobs, tokenizer: Tokenizer) -> Named:
    """The token that stands there first, then the likeliest."""

    def alone(one: int) -> str:
        return (tokenizer.known_bytes(one) or b"").decode("utf-8", "replace")

    found = {token: Logprob(logprobs.logprob, logprobs.rank, alone(token))}
    for rank, (other, value) in enumerate(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True), 1):
        found.setdefault(other, Logprob(value, rank, alone(other)))
    return found
