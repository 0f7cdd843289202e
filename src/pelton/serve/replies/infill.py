"""InfillWriter: an answer in the shape of llama.cpp's server, whole or in events."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from pelton.core.request import CompletionOutput, RequestMetrics, RequestOutput
from pelton.engine.outputs import Answer, StreamPiece
from pelton.serve.replies.head import Head, encode
from pelton.serve.replies.tokens import Named
from pelton.serve.schema.infill import (
    EOS,
    LIMIT,
    NONE,
    WORD,
    Candidate,
    InfillAnswer,
    InfillChunk,
    InfillFields,
    Place,
    Timings,
    chosen,
    settings_told,
)

EVENT, END = b"data: ", b"\n\n"


class InfillWriter:
    """Writes the answer to one gap. `fields`: as the client asked; `cut`: something was left out of the prompt."""

    def __init__(self, head: Head, fields: InfillFields, *, cut: bool) -> None:
        self._head = head
        self._fields = fields
        self._cut = cut
        self._written = 0
        self._prompt_size = len(head.requests[0].prompt_token_ids)

    def piece(self, place: int, piece: StreamPiece, answer: Answer) -> bytes:
        """What is new; why it ended is told by the last event alone."""
        self._written += len(piece.token_ids)
        if not piece.text and not piece.token_ids:
            return b""
        chunk = InfillChunk(
            index=0,
            content=piece.text,
            tokens=list(piece.token_ids),
            stop=False,
            tokens_predicted=self._written,
            tokens_evaluated=self._prompt_size,
            completion_probabilities=self._places(piece.token_ids, piece.logprobs),
        )
        return EVENT + self._encoded(chunk) + END

    def last(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The event with all there is to say of the answer."""
        answer = self._answer(outputs[0], streamed=True)
        return EVENT + self._encoded(answer) + END

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The answer as one object."""
        return self._encoded(self._answer(outputs[0], streamed=False))

    def _answer(self, output: RequestOutput, *, streamed: bool) -> InfillAnswer:
        (one,) = output.outputs
        stop_type, word = _ending(one)
        return InfillAnswer(
            index=0,
            content="" if streamed else one.text,
            tokens=list(one.token_ids) if self._fields.return_tokens and not streamed else [],
            stop=True,
            model=self._head.model,
            tokens_predicted=len(one.token_ids),
            tokens_evaluated=self._prompt_size,
            tokens_cached=output.num_cached_tokens,
            generation_settings=self._settings(output),
            prompt=self._head.tokens.tokenizer.decode(output.prompt_token_ids, skip_special=False),
            has_new_line="\n" in one.text,
            truncated=self._cut,
            stop_type=stop_type,
            stopping_word=word,
            timings=_timings(output, len(one.token_ids)),
            completion_probabilities=UNSET if streamed else self._places(one.token_ids, one.logprobs),
        )

    def _settings(self, output: RequestOutput) -> dict[str, object]:
        """What took effect, in llama.cpp's names."""
        (request,) = self._head.requests
        return {
            "n_predict": request.max_tokens,
            "seed": output.seed,
            "stream": bool(self._fields.stream),
            **settings_told(request.params),
        }

    def _places(self, tokens: Sequence[int], logprobs: Sequence[Named] | None) -> list[Place] | UnsetType:
        """The tokens with the likeliest at their places, if these are wanted."""
        top = self._fields.n_probs
        if not top or logprobs is None:
            return UNSET
        return [
            Place(
                token,
                one.token,
                one.bytes,
                one.logprob,
                [
                    Candidate(other, alike.token, alike.bytes, alike.logprob)
                    for other, alike in zip(_likeliest(named, top), one.top_logprobs, strict=True)
                ],
            )
            for token, named, one in zip(tokens, logprobs, self._head.tokens.chat(tokens, logprobs, top), strict=True)
        ]

    def _encoded(self, record: InfillChunk | InfillAnswer) -> bytes:
        paths = self._fields.response_fields
        if not paths:
            return encode(record)
        return msgspec.json.encode(chosen(msgspec.to_builtins(record), paths))


def _likeliest(named: Named, top: int) -> list[int]:
    """Ids in the order in which they are told."""
    return [token for token, _ in sorted(named.items(), key=lambda item: -item[1].logprob)[:top]]


def _ending(one: CompletionOutput) -> tuple[str, str]:
    """(why it ended, the stop string or nothing)."""
    if isinstance(one.stop_reason, str):
        return WORD, one.stop_reason
    return {"stop": EOS, "length": LIMIT}.get(one.finish_reason or "", NONE), ""


def _timings(output: RequestOutput, written: int) -> Timings:
    metrics, computed = output.metrics, len(output.prompt_token_ids) - output.num_cached_tokens
    prompt, answer = _spans(metrics)
    behind = max(written - 1, 0)  # the first token comes with the prompt's last step
    return Timings(
        cache_n=output.num_cached_tokens,
        prompt_n=computed,
        prompt_ms=prompt,
        prompt_per_token_ms=prompt / computed if computed else 0.0,
        prompt_per_second=1000 * computed / prompt if prompt else 0.0,
        predicted_n=written,
        predicted_ms=answer,
        predicted_per_token_ms=answer / behind if behind else 0.0,
        predicted_per_second=1000 * behind / answer if answer else 0.0,
    )


def _spans(metrics: RequestMetrics) -> tuple[float, float]:
    """Milliseconds up to the first token (or the end, if there is none), and from there to the end."""
    began, end = metrics.first_scheduled, metrics.finished
    if began is None or end is None:
        return 0.0, 0.0
    first = end if metrics.first_token is None else metrics.first_token
    return max(0.0, 1000 * (first - began)), max(0.0, 1000 * (end - first))
