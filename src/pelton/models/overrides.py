"""Overrides of a model's config by the user's settings: merged before a family reads it, told, never without effect.

A table replaces the config's own table of that name whole; only a part's whole config (a name that ends in _config) is
merged field by field. The fields that say where tokens stand are kept consistent, in whichever spelling the file has
them. Invariant: without any one of the overrides the family would read another model, or this one is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace

from pelton.core.errors import CheckpointError, SettingError, UnsupportedModelError
from pelton.core.words.tables import table_of
from pelton.layers.rope import ORIGINAL_CONTEXT
from pelton.models import arch_for
from pelton.models.checks import CONFIG_HAS
from pelton.models.rope_config import PARTIAL, SPELLINGS, THETA

SETTING = "hf_overrides"
EXAMPLE = 'Write for example {"max_position_embeddings": 16384}.'
Path = tuple[str, ...]  # of a field: its name, behind the names of the tables that it stands in


def overrides_of(text: str | None) -> dict[str, object]:
    """The setting hf_overrides, a JSON table as text; SettingError for anything else."""
    return {} if text is None else table_of(SETTING, text, EXAMPLE)


def override_config(config: Mapping[str, object], text: str | None) -> dict[str, object]:
    """The config under the overrides of the setting `text`.

    Raises SettingError for an override without effect or with two meanings, and for one that the family refuses;
    UnsupportedModelError for a config that it refuses with and without them.
    """
    overrides = overrides_of(text)
    if not overrides:
        return dict(config)
    merged = _merged(config, overrides)
    try:
        read = _read(merged)
    except UnsupportedModelError as error:
        if str(error) == _refusal(config):
            raise
        raise SettingError(_told(error.cause, overrides), error.remedy) from error
    for path in _paths(config, overrides):
        try:
            without = _merged(config, _without(overrides, path))
        except SettingError:
            continue  # the others alone cannot be: it makes a difference
        if _reads(without) == read:
            raise _idle(path, merged, without)
    return merged


@contextmanager
def overridden(text: str | None) -> Iterator[None]:
    """For what is made of a config under the overrides `text`: errors about the model say that there are some."""
    try:
        yield
    except (CheckpointError, UnsupportedModelError) as error:
        if not overrides_of(text):
            raise
        raise SettingError(_told(error.cause, {}), error.remedy) from error


def override_notes(text: str | None) -> tuple[str, ...]:
    """What the overrides are, as a sentence for the user; none without any."""
    overrides = overrides_of(text)
    told = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in overrides.items())
    return (f"Config overrides: {told}.",) if told else ()


def _read(config: Mapping[str, object]) -> tuple[object, object]:
    """What the model computes by its config: its family, and what that reads."""
    arch = arch_for(config)
    record = arch.config(config)
    return type(arch), replace(record, notes=()) if is_dataclass(record) else record


def _reads(config: Mapping[str, object]) -> tuple[object, object] | None:
    """The same; None where the family refuses the config."""
    try:
        return _read(config)
    except UnsupportedModelError:
        return None


def _refusal(config: Mapping[str, object]) -> str:
    """Why the config is refused as it is; "" if it is not."""
    try:
        _read(config)
    except UnsupportedModelError as error:
        return str(error)
    return ""


def _told(cause: str, overrides: Mapping[str, object]) -> str:
    """The cause of an error about the overridden config, as one of the setting."""
    named = re.match(rf"{CONFIG_HAS}(?P<rest>(?:no )?(?P<field>\w+).*)", cause, re.DOTALL)
    if named and any(named["field"] in path for path in _paths({}, overrides)):
        return f"{SETTING} has {named['rest']}"
    return f"With {SETTING}, t{cause[1:]}" if cause.startswith("The ") else f"With {SETTING}: {cause}"


def _idle(path: Path, merged: Mapping[str, object], without: Mapping[str, object]) -> SettingError:
    """The error for an override that makes no difference, with the field that wins over it, where one does."""
    name = ".".join(path)
    cause = f"{SETTING} has {name}, which changes nothing that this model computes"
    for other in _fields(merged):
        read = _reads(_without(merged, other)) if other != path else None
        if read is not None and read != _reads(_without(without, other)):
            wins = ".".join(other)
            return SettingError(f"{cause}: {wins} decides.", f"Change {wins}, or leave {name} out.")
    return SettingError(f"{cause}.", "Leave it out; names are those of the model's config.json.")


def _paths(config: Mapping[str, object], overrides: Mapping[str, object]) -> Iterator[Path]:
    """Of all overrides that say something else than the config."""
    for name, value in overrides.items():
        old = config.get(name)
        table = old if isinstance(old, Mapping) else {}
        if name.endswith("_config") and isinstance(value, Mapping) and value:
            yield from ((name, *path) for path in _paths(table, value))
        elif name in SPELLINGS and isinstance(value, Mapping) and value and _nested(table):
            yield from ((name, layer) for layer in value if value[layer] != table.get(layer))
        elif value not in _said(config, name):
            yield (name,)


def _said(config: Mapping[str, object], name: str) -> list[object]:
    """What the config says of the field, also in the tables of positions where it may stand there."""
    tables = [config.get(spelling) for spelling in SPELLINGS] if name in (THETA, PARTIAL, ORIGINAL_CONTEXT) else []
    return [config.get(name), *(table[name] for table in tables if isinstance(table, Mapping) and name in table)]


def _fields(config: Mapping[str, object]) -> Iterator[Path]:
    """The paths of a config's fields, those of its parts' configs among them."""
    for name, value in config.items():
        if name.endswith("_config") and isinstance(value, Mapping):
            yield from ((name, *path) for path in _fields(value))
        else:
            yield (name,)


def _without(config: Mapping[str, object], path: Path) -> dict[str, object]:
    """Without the field at the path, and without a table that is empty then."""
    left, (name, *rest) = dict(config), path
    table = left.pop(name, None)
    if rest and isinstance(table, Mapping) and (inner := _without(table, tuple(rest))):
        left[name] = inner
    return left


def _merged(config: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    merged = dict(config)
    for name, value in overrides.items():
        old = config.get(name)
        if name.endswith("_config") and isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[name] = _merged(old, value)
        else:
            merged[name] = value
    return _with_positions(merged, config, overrides)


def _with_positions(
    merged: dict[str, object], config: Mapping[str, object], overrides: Mapping[str, object]
) -> dict[str, object]:
    """Rotary fields as they are meant: an override's spelling wins over the file's other one, and the base stays."""
    tables = {name: table for name in SPELLINGS if isinstance(table := config.get(name), Mapping)}
    if any(name in overrides for name in SPELLINGS):
        for name, table in tables.items():
            _replace_table(merged, name, table, overrides)
        told = [table for name in SPELLINGS if isinstance(table := overrides.get(name), Mapping)]
        if ORIGINAL_CONTEXT not in overrides and any(ORIGINAL_CONTEXT in table for table in told):
            merged.pop(ORIGINAL_CONTEXT, None)  # it would win over the table's
        return merged
    for field in (THETA, PARTIAL, ORIGINAL_CONTEXT):
        for name, table in list(tables.items()):
            if field not in overrides:
                continue
            if _nested(table):
                raise SettingError(
                    f"{SETTING} has {field}, but this model's config has {name} for each kind of layer.",
                    f"Override {name}, with a table for each of: {', '.join(table)}.",
                )
            if field in table:
                tables[name] = merged[name] = {**table, field: overrides[field]}
    return merged


def _replace_table(
    merged: dict[str, object], name: str, table: Mapping[str, object], overrides: Mapping[str, object]
) -> None:
    """Takes the file's table out for the overrides' one, which keeps what that one does not say of base and share."""
    if _nested(table):
        given = overrides.get(name)
        if not isinstance(given, Mapping) or not set(given) & set(table):
            raise SettingError(
                f"{SETTING} has a rotary scaling for all layers, but this model's config has {name} for each kind of "
                "layer.",
                f"Override {name}, with a table for each that is to change, of: {', '.join(table)}.",
            )
        merged[name] = {**table, **given}
        return
    if name not in overrides:
        merged.pop(name)
    said = [value for spelling in SPELLINGS if isinstance(value := overrides.get(spelling), Mapping)]
    for field in (THETA, PARTIAL):
        if field in table and field not in overrides and not any(field in one for one in said):
            merged[field] = table[field]


def _nested(table: Mapping[str, object]) -> bool:
    return any(isinstance(value, Mapping) for value in table.values())
