"""Terms: whose a request is, its session, and how long it may take, by body, headers and the server's settings.

It reads no keys but to tell them apart. Invariant: no key leaves this file.
"""

import math
import re
from dataclasses import dataclass, replace

from starlette.types import Scope

from pelton.core.errors import RequestError
from pelton.core.request import Request, owner_of_key, slot_session
from pelton.serve.schema.fields import MAX_NAME, MAX_SECONDS
from pelton.serve.settings import ServeSettings

HEADER = "X-Request-Timeout"
SESSION_HEADER = "X-Session-Id"
SHOWN = 60  # characters of a header in an error
_NUMBER = re.compile(r"[0-9.eE+-]+")  # float() takes more, such as 1_0


@dataclass(frozen=True, slots=True)
class Terms:
    """`seconds` from its arrival on; None: any time."""

    owner: str = ""
    seconds: float | None = None

    def on(self, request: Request) -> Request:
        """The request on these terms."""
        deadline = None if self.seconds is None else request.arrival + self.seconds
        return replace(request, owner=self.owner, deadline=deadline)


def terms_of(settings: ServeSettings, scope: Scope, user: str | None = None, timeout: float | None = None) -> Terms:
    """`user`, `timeout`: the body's fields. RequestError for a header that is no number of seconds.

    The shorter of header and field holds, and without both the setting. A request is its API key's where there are
    several, else its user's.
    """
    given = [seconds for seconds in (timeout, _seconds(scope)) if seconds is not None]
    seconds = min(given, default=settings.request_timeout or None)
    if len(settings.api_keys) > 1:
        _, _, key = _header(scope, b"authorization").partition(b" ")
        return Terms(owner_of_key(key.strip().decode("latin-1")), seconds)
    return Terms(user or "", seconds)


def session_of(scope: Scope, slots: int, session_id: str | None, id_slot: int | None = None) -> str:
    """The id of the session that the body's fields name, or else the header; "" where nothing does.

    `slots`: how many there are. RequestError for a slot that there is not, and for what is no name.
    """
    if id_slot is not None and id_slot >= 0:
        if session_id is not None:
            raise RequestError("id_slot and session_id both name a session.", "Give one of them.", param="id_slot")
        return slot_session(expect_slot(id_slot, slots))
    if session_id is not None:
        return session_id
    name = _header(scope, SESSION_HEADER.lower().encode()).decode("latin-1")
    if name and not (len(name) <= MAX_NAME and name.isascii() and name.isprintable()):
        raise RequestError(
            f"{SESSION_HEADER}: {name[:SHOWN]!r} cannot be used.", f"Send 1 to {MAX_NAME} printable ASCII characters."
        )
    return name


def expect_slot(number: int, slots: int) -> int:
    """The number of a slot; RequestError where there is no such."""
    if not 0 <= number < slots:
        raise RequestError(
            f"id_slot={number} is no slot of this server.",
            f"They are numbered from 0 to {slots - 1} (max_num_seqs={slots}).",
            param="id_slot",
        )
    return number


def _seconds(scope: Scope) -> float | None:
    """What the header says."""
    text = _header(scope, HEADER.lower().encode()).decode("latin-1").strip()
    if not text:
        return None
    try:
        seconds = float(text) if _NUMBER.fullmatch(text) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_SECONDS:
        raise RequestError(
            f"{HEADER}: {text[:SHOWN]!r} cannot be used.", f"Send seconds, above 0 and at most {MAX_SECONDS:g}."
        )
    return seconds


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope.get("headers", ()) if name == wanted), b"")
