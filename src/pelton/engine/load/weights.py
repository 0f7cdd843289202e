"""Weights of owners, as the settings give them: a JSON table of users and API keys and how many shares each gets."""

import json
import math
from collections.abc import Mapping

from pelton.core.errors import SettingError
from pelton.core.request import owner_of_key

NAME = "fairness_weights"


def owner_weights(text: str) -> Mapping[str, float]:
    """By the names that requests have as their owner's. SettingError for what is no such table.

    Nobody knows which names are of users and which are keys, so each holds as both.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{NAME} is no JSON.", 'Write it like {"alice": 2, "bob": 0.5}.') from error
    if not isinstance(table, dict):
        raise SettingError(f"{NAME} is no JSON table.", 'Write it like {"alice": 2, "bob": 0.5}.')
    found: dict[str, float] = {}
    for name, weight in table.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight <= 0:
            raise SettingError(f"{NAME} has a weight of {weight!r}.", "It must be a number above 0.")
        found[name] = found[owner_of_key(name)] = float(weight)
    return found
