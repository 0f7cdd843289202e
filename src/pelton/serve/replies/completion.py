"""CompletionWriter: answers as text_completion objects, whole or in chunks, with the prompt in front if wanted.

Invariant: with log-probabilities there is one entry for each token of what is returned, the echoed prompt's among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from pelton.core.request import CompletionOutput, RequestOutput
from pelton.engine.outputs import Answer, StreamPiece
from pelton.serve.replies.head import Head, encode, event
from pelton.serve.replies.tokens import Named, RunningUsage, TextPlaces, joined, text_logprobs, usage_of
from pelton.serve.schema.answers import PromptLogprobs, TextAnswer, TextChoice, TextLogprobs, Usage


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as it stands in front of its answers."""

    text: str
    logprobs: TextLogprobs | None


class CompletionWriter:
    """Writes the answers to one or several prompts; answer i to prompt p has index p * n + i.

    `logprobs`: the lists are wanted; `prompt_logprobs`: the prompt's by token id, beside its first answer.
    """

    def __init__(self, head: Head, *, echo: bool, logprobs: bool, prompt_logprobs: bool) -> None:
        self._head = head
        self._wants_scores = prompt_logprobs
        self._echo = echo
        self._wants_logprobs = logprobs
        self._places: dict[int, TextPlaces] = {}
        self._echoes: dict[int, Echo] = {}
        self._usage = RunningUsage(head.requests) if head.usage_in_chunks else None
        self._left = sum(request.params.n for request in head.requests)

    def piece(self, place: int, piece: StreamPiece, answer: Answer) -> bytes:
        """One chunk for what is new of one of the answers; its first one has the prompt in front."""
        index = self._index(place, piece.index)
        first = index not in self._places
        if self._usage is not None:
            self._usage.take(place, piece, answer)
        echo = self._echo_of(place, answer.output().prompt_logprobs) if first and self._echo else None
        choice = TextChoice(
            index,
            (echo.text if echo is not None else "") + piece.text,
            self._logprobs(index, place, piece.token_ids, piece.logprobs, echo),
            piece.finish_reason,
            piece.stop_reason,
        )
        if self._head.return_token_ids:
            choice.token_ids = list(piece.token_ids)
            choice.prompt_token_ids = list(self._head.requests[place].prompt_token_ids) if first else UNSET
        self._left -= piece.finish_reason is not None
        return event(self._answer([choice], self._usage_so_far(), told=not self._left))

    def last(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The chunk with usage, if it is wanted."""
        return event(self._answer([], usage_of(outputs))) if self._head.include_usage else b""

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The answers as one object."""
        choices = [self._choice(place, output, one) for place, output in enumerate(outputs) for one in output.outputs]
        return encode(self._answer(choices, usage_of(outputs), told=True))

    def _choice(self, place: int, output: RequestOutput, one: CompletionOutput) -> TextChoice:
        index = self._index(place, one.index)
        echo = self._echo_of(place, output.prompt_logprobs) if self._echo else None
        choice = TextChoice(
            index,
            (echo.text if echo is not None else "") + one.text,
            self._logprobs(index, place, one.token_ids, one.logprobs, echo),
            one.finish_reason,
            one.stop_reason,
            prompt_logprobs=self._scores(output) if one.index == 0 else None,
        )
        if self._head.return_token_ids:
            choice.token_ids = list(one.token_ids)
            choice.prompt_token_ids = list(output.prompt_token_ids)
        return choice

    def _scores(self, output: RequestOutput) -> PromptLogprobs | None:
        return self._head.tokens.prompt(output.prompt_logprobs) if self._wants_scores else None

    def _index(self, place: int, child: int) -> int:
        return place * self._head.requests[place].params.n + child

    def _logprobs(
        self, index: int, place: int, tokens: Sequence[int], logprobs: Sequence[Named] | None, echo: Echo | None
    ) -> TextLogprobs | None:
        """The new tokens' entries, behind those of the prompt if it stands in front."""
        params = self._head.requests[place].params
        places = self._places.get(index)
        if places is None:
            start = len(echo.text) if echo is not None else 0
            places = TextPlaces(self._head.tokens.tokenizer, start, params.skip_special_tokens)
            self._places[index] = places
        if not self._wants_logprobs or logprobs is None:
            return None
        new = text_logprobs(self._head.tokens, tokens, logprobs, [places.next(token) for token in tokens])
        return new if echo is None or echo.logprobs is None else joined(echo.logprobs, new)

    def _echo_of(self, place: int, logprobs: Sequence[Named | None] | None) -> Echo:
        """The prompt in front of the answers to it; made once for all n."""
        if place not in self._echoes:
            request, tokenizer = self._head.requests[place], self._head.tokens.tokenizer
            ids = request.prompt_token_ids
            text = tokenizer.decode(ids, skip_special=False) if request.prompt is None else request.prompt
            entries = None
            if self._wants_logprobs:
                # A text that was given does not hold the token that the tokenizer puts in front of it.
                bos = tokenizer.bos_id
                added = bos is not None and ids[0] == bos and not text.startswith(tokenizer.token_text(bos))
                places = TextPlaces(tokenizer, 0, hide_special=False)
                offsets = [0] * added + [min(places.next(token), len(text)) for token in ids[added:]]
                entries = text_logprobs(self._head.tokens, ids, logprobs or [None] * len(ids), offsets)
            self._echoes[place] = Echo(text, entries)
        return self._echoes[place]

    def _answer(
        self, choices: list[TextChoice], counted: Usage | None | UnsetType, *, told: bool = False
    ) -> TextAnswer:
        head = self._head
        return TextAnswer(
            id=head.id,
            object="text_completion",
            created=head.created,
            model=head.model,
            choices=choices,
            system_fingerprint=head.fingerprint,
            usage=counted,
            pelton=head.told if told and head.explained is not None else UNSET,
        )

    def _usage_so_far(self) -> Usage | None | UnsetType:
        if self._usage is not None:
            return self._usage.record()
        return None if self._head.include_usage else UNSET
