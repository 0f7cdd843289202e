"""The interface of speculation: a method proposes tokens. It verifies none: that is one function for all methods.

Invariant: whatever is proposed, the answer stays what it would be without; only the number of steps changes.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from pelton.core.needs import Needs
from pelton.core.plan import Draft
from pelton.program.module import Module


class Speculator(Protocol):
    """One method of guessing. `needs` names layers whose output it wants and what it relies on, such as ROLLBACK."""

    needs: ClassVar[Needs]

    def attach(self, module: Module) -> Module:
        """The module with the entries the method runs itself (its draft head), before it is compiled."""
        ...

    def propose(self, rows: Sequence[int], known: Mapping[int, Sequence[int]], width: int) -> list[Draft | None]:
        """For each row a draft of at most `width` tokens, or None. `known[row]`: all its tokens, valid in this call."""
        ...

    def settle(self, accepted: Mapping[int, int]) -> None:
        """How many tokens of each row's last draft were accepted; what was kept for the others is void now."""
        ...

    def forget(self, row: int) -> None:
        """The row's request is over or preempted; the row may come back with another one."""
        ...
