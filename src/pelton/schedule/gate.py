"""Gate: in which order waiting requests are tried, and how much room must stay free when one of them begins.

It admits nobody itself. Invariant: where nothing runs it keeps nothing back, so that somebody can always begin.
"""

from collections.abc import Iterable, Sequence

from pelton.schedule.forks import Forks
from pelton.schedule.order import Order, QueueView
from pelton.schedule.sharing import Sharing
from pelton.schedule.tracked import NewRequest, Tracked

LEAST_RESERVE = 1  # blocks for each running request: its next tokens must not preempt at once who is admitted
MOST_RESERVE = 16
LOOKUPS = 128  # the first so many waiting ones are looked up in the prefix tree
FRESH = 16  # plans for which what was found is taken to be there still


class Gate:
    """`reserve`: blocks that must be left for each running request. It doubles with each plan in which blocks ran out,
    up to MOST_RESERVE, and halves with each running request that ends: after a preemption nobody begins before there
    is room for what the running ones will soon need, or fewer of them. `served`: as Order.served.
    """

    def __init__(self, order: Order, forks: Forks, sharing: Sharing) -> None:
        self.reserve = LEAST_RESERVE
        self.served = order.served
        self._order = order
        self._forks = forks
        self._sharing = sharing
        self._plans = 0
        self._found: dict[Tracked, tuple[int, int]] = {}  # request -> (until which plan it holds, tokens)

    def queue(self, waiting: Sequence[Tracked], now: float) -> Iterable[Tracked]:
        """The waiting ones in the order in which they are tried; read while some of them begin."""
        self._plans += 1
        return self._order.queue(tuple(waiting), QueueView(now, self._cached))

    def rank(self, request: NewRequest, number: int) -> tuple[float, ...]:
        """As Order.rank."""
        return self._order.rank(request, number)

    def victim(self, running: Sequence[Tracked]) -> int:
        """As Order.victim."""
        return self._order.victim(running)

    def ran_short(self) -> None:
        """Blocks ran out in this plan, and requests lost theirs."""
        self.reserve = min(2 * self.reserve, MOST_RESERVE)

    def over(self, request: Tracked) -> None:
        """A request ended."""
        self._found.pop(request, None)
        if request.row is not None:
            self.reserve = max(self.reserve // 2, LEAST_RESERVE)

    def began(self, request: Tracked) -> None:
        """A request runs."""
        self._found.pop(request, None)

    def _cached(self, request: Tracked) -> int:
        """Leading tokens that the request would find. Another answer finds all but the last of a computed prompt."""
        family = self._forks.family(request)
        if family is not None:
            return request.asked.prompt - 1 if family.blocks else 0
        until, tokens = self._found.get(request, (0, 0))
        if until > self._plans:
            return tokens
        if until == 0 and len(self._found) >= LOOKUPS:
            return 0
        tokens = self._sharing.cached(request)
        # Spread, so that no plan looks all of them up.
        self._found[request] = self._plans + FRESH + request.number % FRESH, tokens
        return tokens
