"""ChatWriter: answers as chat.completion objects, whole or in chunks. It renders no template."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from pelton.core.request import RequestOutput
from pelton.engine.outputs import Answer, StreamPiece
from pelton.serve.replies.head import Head, encode, event
from pelton.serve.replies.tokens import Named, RunningUsage, usage_of
from pelton.serve.schema.answers import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
    Message,
    Usage,
)

ROLE = "assistant"


class ChatWriter:
    """Writes one chat. `echo`: text in front of each answer; `top`: likeliest tokens told, None: no log-probabilities.

    In a stream each of the n answers begins with a chunk that has its role, and ends with one that has no content.
    """

    def __init__(self, head: Head, *, echo: str, top: int | None) -> None:
        self._head = head
        self._echo = echo
        self._top = top
        self._begun: set[int] = set()
        self._usage = RunningUsage(head.requests) if head.usage_in_chunks else None

    def piece(self, place: int, piece: StreamPiece, answer: Answer) -> bytes:
        """Chunks for what is new of one of the answers."""
        if self._usage is not None:
            self._usage.take(place, piece, answer)
        events = [] if piece.index in self._begun else self._opening(piece.index)
        last = piece.finish_reason is not None
        if piece.text or piece.token_ids or not last:
            choice = ChatChunkChoice(
                piece.index,
                Delta(content=piece.text),
                logprobs=self._logprobs(piece.token_ids, piece.logprobs),
                token_ids=list(piece.token_ids) if self._head.return_token_ids else UNSET,
            )
            events.append(self._chunk([choice], self._usage_so_far()))
        if last:
            choice = ChatChunkChoice(
                piece.index, Delta(), finish_reason=piece.finish_reason, stop_reason=piece.stop_reason
            )
            events.append(self._chunk([choice], self._usage_so_far(), told=piece.finished))
        return b"".join(events)

    def last(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The chunk with usage, if it is wanted."""
        return self._chunk([], usage_of(outputs)) if self._head.include_usage else b""

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The answer as one object."""
        (output,) = outputs
        head = self._head
        answer = ChatAnswer(
            id=head.id,
            object="chat.completion",
            created=head.created,
            model=head.model,
            choices=[
                ChatChoice(
                    one.index,
                    Message(ROLE, self._echo + one.text),
                    self._logprobs(one.token_ids, one.logprobs),
                    one.finish_reason,
                    one.stop_reason,
                    list(one.token_ids) if head.return_token_ids else UNSET,
                )
                for one in output.outputs
            ],
            usage=usage_of(outputs),
            system_fingerprint=head.fingerprint,
            prompt_logprobs=head.tokens.prompt(output.prompt_logprobs),
            prompt_token_ids=list(output.prompt_token_ids) if head.return_token_ids else UNSET,
            pelton=UNSET if head.explained is None else head.told,
        )
        return encode(answer)

    def _opening(self, index: int) -> list[bytes]:
        ids: list[int] | UnsetType = UNSET
        if self._head.return_token_ids and not self._begun:
            ids = list(self._head.requests[0].prompt_token_ids)
        self._begun.add(index)
        opening = ChatChunkChoice(index, Delta(role=ROLE, content=""))
        events = [self._chunk([opening], self._usage_so_far(), prompt_token_ids=ids)]
        if self._echo:
            events.append(self._chunk([ChatChunkChoice(index, Delta(content=self._echo))], self._usage_so_far()))
        return events

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        counted: Usage | None | UnsetType,
        *,
        prompt_token_ids: list[int] | UnsetType = UNSET,
        told: bool = False,
    ) -> bytes:
        head = self._head
        return event(
            ChatChunk(
                id=head.id,
                object="chat.completion.chunk",
                created=head.created,
                model=head.model,
                choices=choices,
                system_fingerprint=head.fingerprint,
                usage=counted,
                prompt_token_ids=prompt_token_ids,
                pelton=head.told if told and head.explained is not None else UNSET,
            )
        )

    def _usage_so_far(self) -> Usage | None | UnsetType:
        """In chunks: the counts so far, or null where a last chunk will have them."""
        if self._usage is not None:
            return self._usage.record()
        return None if self._head.include_usage else UNSET

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[Named] | None) -> ChatLogprobs | None:
        if self._top is None or logprobs is None:
            return None
        return ChatLogprobs(self._head.tokens.chat(tokens, logprobs, self._top))
