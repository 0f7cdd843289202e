"""Settings that are JSON tables as text: the table, or a SettingError that says what is wrong with it."""

import json

from pelton.core.errors import SettingError


class _Twice(ValueError):
    """A key that a table has twice: decoding would keep the last of the two in silence."""


def table_of(name: str, text: str, remedy: str, *, secret: bool = False) -> dict[str, object]:
    """The table of the setting `name`. `remedy` shows how it is written; of what is `secret` nothing is told."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except _Twice as error:
        raise SettingError(f"{name} has {'a key' if secret else error} twice.", "Give it once.") from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{name} is no JSON{'' if secret else f': {error}'}.", remedy) from error
    if not isinstance(value, dict):
        raise SettingError(f"{name if secret else f'{name}={text!r}'} is no table.", remedy)
    return value


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            raise _Twice(repr(key))
        table[key] = value
    return table
