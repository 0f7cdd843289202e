"""Query: the parameters behind a route's `?`, each given once. It knows no route.

Invariant: what is given has an effect, is told as ignored, or is an error.
"""

from collections.abc import Sequence

from starlette.datastructures import QueryParams

from pelton.core.errors import RequestError

SHOWN = 40  # letters of what was given


class Query:
    """`ignored`: names that are not `known`. RequestError for a known one that comes twice, or, if `strict`, for one
    that is not known.
    """

    def __init__(self, given: QueryParams, known: Sequence[str], *, strict: bool) -> None:
        self.ignored: tuple[str, ...] = ()
        self._values: dict[str, str] = {}
        for name, value in given.multi_items():
            if name in self._values:
                raise RequestError(f"{name[:SHOWN]} stands in the query twice.", "Give it once.", param=name[:SHOWN])
            if name in known:
                self._values[name] = value
            elif strict:
                cause = f"There is no query parameter {name[:SHOWN]!r} here."
                remedy = f"There is {', '.join(known)}." if known else "Leave it out."
                raise RequestError(cause, remedy, param=name[:SHOWN])
            elif name not in self.ignored:
                self.ignored = (*self.ignored, name)

    def text(self, name: str, default: str = "") -> str:
        """The value as it was given."""
        return self._values.get(name, default)

    def flag(self, name: str, no: str, yes: str) -> bool:
        """Whether it is `yes`; not given is `no`. RequestError for anything else."""
        value = self.text(name, no)
        if value not in (no, yes):
            raise RequestError(f"{name}={value[:SHOWN]!r} cannot work.", f"It is {yes} or {no}.", param=name)
        return value == yes
