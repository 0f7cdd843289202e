"""Overrides of a model's config by the user's settings: merged before a family reads it, told, never without effect.

A table replaces the config's own table of that name whole; only a part's whole config (a name that ends in _config) is
merged field by field. The fields that say where tokens stand are kept consistent, in whichever spelling the file has
them. Invariant: an override is read by the family, or refused.
"""

import json
from collections.abc import Mapping

from pelton.core.errors import SettingError
from pelton.layers.rope import ORIGINAL_CONTEXT
from pelton.models import config_notes
from pelton.models.config import HARMLESS
from pelton.models.rope_config import PARTIAL, SPELLINGS, THETA

SETTING = "hf_overrides"
EXAMPLE = 'Write for example {"max_position_embeddings": 16384}.'
FAMILY = ("architectures", "model_type")  # they choose who reads the config


def overrides_of(text: str | None) -> dict[str, object]:
    """The setting hf_overrides, a JSON table as text; SettingError for anything else."""
    if text is None:
        return {}
    try:
        table = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{SETTING} is no JSON: {error}.", EXAMPLE) from error
    if not isinstance(table, dict):
        raise SettingError(f"{SETTING}={text!r} is no table.", EXAMPLE)
    return table


def override_config(config: Mapping[str, object], text: str | None) -> dict[str, object]:
    """The config under the overrides of the setting `text`.

    Raises SettingError for an override without effect or with two meanings, UnsupportedModelError for one that the
    family refuses.
    """
    overrides = overrides_of(text)
    if not overrides:
        return dict(config)
    merged = _with_positions(_merged(config, overrides), config, overrides)
    idle = [name for name in overrides if name in HARMLESS and name not in FAMILY]
    notes = config_notes(merged)
    idle += [name for name in overrides if any(repr(name) in note for note in notes)]
    if idle:
        raise SettingError(
            f"{SETTING} has {idle[0]}, which changes nothing that this model computes.",
            "Leave it out; names are those of the model's config.json.",
        )
    return merged


def override_notes(text: str | None) -> tuple[str, ...]:
    """What the overrides are, as a sentence for the user; none without any."""
    overrides = overrides_of(text)
    told = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in overrides.items())
    return (f"Config overrides: {told}.",) if told else ()


def _merged(config: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    merged = dict(config)
    for name, value in overrides.items():
        old = config.get(name)
        if name.endswith("_config") and isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[name] = _merged(old, value)
        else:
            merged[name] = value
    return merged


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
