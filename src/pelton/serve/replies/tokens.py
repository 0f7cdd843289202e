"""Log-probabilities and places of tokens in the shapes clients know.

Invariant: numbers are finite, as JSON has no others: what is impossible is told as FLOOR.
"""

import codecs
from collections.abc import Mapping, Sequence

from msgspec import UNSET

from pelton.core.request import Logprob, Request, RequestOutput
from pelton.engine.outputs import Answer, StreamPiece
from pelton.serve.schema.answers import PromptDetails, PromptLogprobs, TextLogprobs, TokenLogprob, TopLogprob, Usage
from pelton.tokenize.tokenizer import Tokenizer

FLOOR = -9999.0
Named = Mapping[int, Logprob]


class TokenWriter:
    """One request's way to show tokens: by their text, or with `as_ids` as "token_id:N"."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token: int, entry: Logprob | None = None) -> str:
        """The token as it is shown."""
        if self._as_ids:
            return f"token_id:{token}"
        known = None if entry is None else entry.decoded_token
        return self._bytes(token).decode("utf-8", "replace") if known is None else known

    def chat(self, tokens: Sequence[int], logprobs: Sequence[Named], top: int) -> list[TokenLogprob]:
        """An entry for each token, with the `top` likeliest."""
        return [
            TokenLogprob(
                self.text(token, named[token]),
                _finite(named[token].logprob),
                list(self._bytes(token)),
                [
                    TopLogprob(self.text(other, entry), _finite(entry.logprob), list(self._bytes(other)))
                    for other, entry in sorted(named.items(), key=lambda item: -item[1].logprob)[:top]
                ],
            )
            for token, named in zip(tokens, logprobs, strict=False)
        ]

    def prompt(self, logprobs: Sequence[Named | None] | None) -> PromptLogprobs | None:
        """The prompt's log-probabilities by token id, the first null."""
        if logprobs is None:
            return None
        return [
            None
            if named is None
            else {
                str(token): {
                    "logprob": _finite(entry.logprob),
                    "rank": entry.rank,
                    "decoded_token": self.text(token, entry),
                }
                for token, entry in named.items()
            }
            for named in logprobs
        ]

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.known_bytes(token) or b""


class TextPlaces:
    """Where each token's text starts, in characters from `start`; a token inside a character starts where that does.

    `hide_special`: special tokens take no room, as their text is not in the answer.
    """

    def __init__(self, tokenizer: Tokenizer, start: int, hide_special: bool) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if hide_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._place = start

    def next(self, token: int) -> int:
        """The place of this token, which stands behind all those asked for before."""
        place = self._place
        if token not in self._hidden:
            self._place += len(self._decoder.decode(self._tokenizer.known_bytes(token) or b""))
        return place


def text_logprobs(
    writer: TokenWriter, tokens: Sequence[int], logprobs: Sequence[Named | None], places: Sequence[int]
) -> TextLogprobs:
    """The completion's lists. None: a token nothing stands before. Where two tokens look alike the first counts,
    which is the drawn one.
    """
    made = TextLogprobs([], [], [], [])
    for token, named, place in zip(tokens, logprobs, places, strict=False):
        made.tokens.append(writer.text(token))
        made.text_offset.append(place)
        if named is None:
            made.token_logprobs.append(None)
            made.top_logprobs.append(None)
            continue
        made.token_logprobs.append(_finite(named[token].logprob))
        top: dict[str, float] = {}
        for other, entry in named.items():
            top.setdefault(writer.text(other, entry), _finite(entry.logprob))
        made.top_logprobs.append(top)
    return made


def joined(first: TextLogprobs, second: TextLogprobs | None) -> TextLogprobs:
    """The entries of both, in order."""
    if second is None:
        return first
    return TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """Tokens of all prompts and answers; each prompt counts once, however many answers it has."""
    return usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(completion.token_ids) for output in outputs for completion in output.outputs),
        sum(output.num_cached_tokens for output in outputs),
    )


def usage(prompt: int, completion: int, cached: int | None) -> Usage:
    """The record of these counts; `cached` None: it is not known yet."""
    return Usage(prompt, completion, prompt + completion, UNSET if cached is None else PromptDetails(cached))


class RunningUsage:
    """The usage of a call while its answers stream. What the cache gave is known of a prompt once an answer begins."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._prompt = sum(len(request.prompt_token_ids) for request in requests)
        self._prompts = len(requests)
        self._written = 0
        self._cached: dict[int, int] = {}

    def take(self, place: int, piece: StreamPiece, answer: Answer) -> None:
        """A piece of the answer to the prompt at `place` is about to be told."""
        self._written += len(piece.token_ids)
        if place not in self._cached:
            self._cached[place] = answer.output().num_cached_tokens

    def record(self) -> Usage:
        """The counts so far."""
        known = len(self._cached) == self._prompts
        return usage(self._prompt, self._written, sum(self._cached.values()) if known else None)


def _finite(value: float) -> float:
    return max(value, FLOOR)
