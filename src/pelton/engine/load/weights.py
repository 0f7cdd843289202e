"""Weights of owners, as the settings give them: a JSON table of users and API keys and how many shares each gets."""

import math
from collections.abc import Mapping

from pelton.core.errors import SettingError
from pelton.core.params import real
from pelton.core.request import owner_of_key
from pelton.core.words.tables import table_of

NAME = "fairness_weights"


def owner_weights(text: str) -> Mapping[str, float]:
    """By the names that requests have as their owner's. SettingError for what is no such table.

    Nobody knows which names are of users and which are keys, so each holds as both.
    """
    found: dict[str, float] = {}
    for name, given in table_of(NAME, text, 'Write it like {"alice": 2, "bob": 0.5}.', secret=True).items():
        weight = real(given)
        if weight is None or not math.isfinite(weight) or weight <= 0:
            raise SettingError(f"{NAME} has a weight of {given!r}.", "It must be a number above 0.")
        found[name] = found[owner_of_key(name)] = weight
    return found
