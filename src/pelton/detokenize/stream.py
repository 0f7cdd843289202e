"""TokenStream: the text of an answer while its tokens arrive. It knows nothing of stop strings.

Invariant: all pieces, finish() included, joined are the decoded text of all ids, however the ids were handed in.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

_Utf8 = getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What a stream must know of a vocabulary; a Tokenizer is one."""

    strips_leading_space: bool
    special_ids: frozenset[int]

    def known_bytes(self, token_id: int) -> bytes | None: ...


class TokenStream:
    """Bytes of the tokens through an incremental UTF-8 decoder: constant time per token, never half a character.

    A malformed byte comes out as U+FFFD as soon as it is known to be malformed; an unfinished character is held until
    it is finished or until finish(). Ids without an entry in the vocabulary have no text. `prompt_ids`: what the answer
    continues; after a prompt that holds text, a space at the start of the answer stays.
    """

    def __init__(self, vocabulary: TokenBytes, *, skip_special: bool = True, prompt_ids: Sequence[int] = ()) -> None:
        self._known_bytes = vocabulary.known_bytes
        self._skipped: AbstractSet[int] = vocabulary.special_ids if skip_special else frozenset()
        self._decoder = _Utf8("replace")
        self._drop_space = vocabulary.strips_leading_space and not _holds_text(vocabulary, prompt_ids)

    def add(self, ids: Iterable[int]) -> str:
        """The text that `ids` add and that later tokens cannot change."""
        raw = b"".join([self._known_bytes(token_id) or b"" for token_id in ids if token_id not in self._skipped])
        if raw and self._drop_space:
            self._drop_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """What is still held: U+FFFD for an unfinished character, else nothing. The stream then starts anew."""
        return self._decoder.decode(b"", final=True)


def _holds_text(vocabulary: TokenBytes, ids: Sequence[int]) -> bool:
    return any(i not in vocabulary.special_ids and vocabulary.known_bytes(i) for i in reversed(ids))
