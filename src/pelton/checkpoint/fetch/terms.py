"""Terms that a model comes under: refused until somebody accepts them, which is remembered beside the model.

It asks nobody; a door that has a user may do so and fetch again. Invariant: without an acceptance nothing is fetched
and nothing that is there is handed out.
"""

import json
import logging
from pathlib import Path

from pelton.checkpoint.fetch.sources import Terms
from pelton.checkpoint.json_files import read_object
from pelton.core.errors import CheckpointError, TermsError

ACCEPTED = "accepted.json"

_log = logging.getLogger("pelton")


def check_terms(home: Path, model: str, terms: Terms, *, accepted: bool) -> None:
    """TermsError unless the terms are accepted now, or were for the models in the folder `home`."""
    if _remembered(home, terms):
        return
    if not accepted:
        raise TermsError(
            f"{model} comes under the {terms.name} ({terms.address}), which must be accepted first.",
            "Read them; then give --accept-terms (from Python: accept_terms=True).",
        )
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / ACCEPTED).write_text(json.dumps({"terms": terms.name, "address": terms.address}, indent=1))
    except OSError as error:  # a cache that may only be read: accepted for this time
        _log.debug("%s: %s", home, error)


def _remembered(home: Path, terms: Terms) -> bool:
    try:
        return read_object(home / ACCEPTED).get("address") == terms.address
    except CheckpointError:
        return False
