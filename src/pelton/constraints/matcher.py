"""The interfaces of constrained decoding: a grammar format, and the matcher that follows one answer. No format yet.

They see token ids and bytes, no logits. Invariant: a token whose bit is set can be accepted.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from pelton.core.needs import Needs


class Matcher(Protocol):
    """Where one answer stands in its grammar. Used by one thread at a time."""

    def fill(self, mask: memoryview) -> None:
        """Sets all 32-bit words of `mask`: bit id % 32 of word id / 32 says whether the token may come next.

        Right until the next accept or rollback.
        """
        ...

    def accept(self, token: int) -> bool:
        """The token was drawn; False, and nothing changed, where the grammar forbids it."""
        ...

    def rollback(self, count: int) -> None:
        """Takes the last `count` accepted tokens back."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next, as far as there is no choice; they are not accepted by being told."""
        ...

    def finished(self) -> bool:
        """Whether the answer is complete and nothing but its end may follow."""
        ...


class Grammar(Protocol):
    """One format in which grammars are written."""

    needs: ClassVar[Needs]

    def compile(self, text: str, tokens: Sequence[bytes]) -> Matcher:
        """A matcher at the grammar's start; `tokens[id]` are a token's bytes. RequestError for what is no grammar.

        What one matcher accepts never shows in another of the same text.
        """
        ...
