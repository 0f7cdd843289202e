"""From what a request says and what holds where it says nothing to its SamplingParams, and where each value came from.

In rising order: SamplingParams' own defaults, the model's generation_config, the settings' overrides, the request.
Invariant: every field has exactly one origin.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from pelton.core.errors import CheckpointError, RequestError, SettingError
from pelton.core.params import SamplingParams
from pelton.core.words.tables import table_of
from pelton.sampling.recommended import FIELDS, NEUTRAL, SWITCH, recommended
from pelton.sampling.refused import asks_nothing, refuse

MODEL, FLAG, REQUEST, GENERAL = "generation_config", "flag", "request", "default"
SETTING = "override_generation_config"
PLAIN = SamplingParams()
NAMES = tuple(field.name for field in fields(SamplingParams))
LENGTHS = ("max_tokens", "min_tokens")  # SamplingParams' names of what generation_config calls otherwise


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for requests that say nothing: SamplingParams' fields and where each came from (MODEL or FLAG)."""

    values: dict[str, object]
    origins: dict[str, str]


@dataclass(frozen=True, slots=True)
class Effective:
    """A request's parameters, and for each field of SamplingParams its origin: REQUEST, MODEL, FLAG or GENERAL."""

    params: SamplingParams
    origins: dict[str, str]


def overrides_of(text: str | None) -> Mapping[str, object] | None:
    """The setting override_generation_config, a JSON table as text; SettingError for anything else."""
    return None if text is None else table_of(SETTING, text, 'Write for example {"temperature": 0.6}.')


def defaults_of(
    generation_config: Mapping[str, object], overrides: Mapping[str, object] | None, use_model: bool
) -> Defaults:
    """The model's recommendations (if `use_model`) under the settings' overrides, both in generation_config's names.

    Overrides may say max_tokens and min_tokens too. Raises CheckpointError for a recommendation that no request could
    have; SettingError for such an override, and for a name that there is not, with the nearest.
    """
    said = overrides or {}
    _expect_known(said)
    flags = recommended(said) | {name: said[name] for name in LENGTHS if said.get(name) is not None}
    model: dict[str, object] = {}
    if use_model:
        overruled = bool(said.get(SWITCH)) or "temperature" in flags
        model = recommended({**generation_config, SWITCH: None} if overruled else generation_config)
    for field, error in _faults(model):
        raise CheckpointError(f"generation_config.json: {error.cause}", f"Correct it or remove {field}.") from error
    for _, error in _faults(flags):
        raise SettingError(f"{SETTING}: {error.cause}", error.remedy) from error
    return Defaults({**model, **flags}, dict.fromkeys(model, MODEL) | dict.fromkeys(flags, FLAG))


def effective(
    given: Mapping[str, object], defaults: Defaults, general: Mapping[str, object] | None = None
) -> Effective:
    """The parameters of a request that says `given`, of which None is a value like others.

    `general`: a door's own defaults, where they are not SamplingParams'. Raises RequestError for bad values, for names
    that there are not, and for what is not supported. A least length that the request did not ask for gives way to its
    max_tokens.
    """
    given = refuse(given)
    for name in given:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            raise RequestError(f"{name} is not a parameter.", f"Did you mean {near[0]}?" if near else "", param=name)
    values = {**(general or {}), **defaults.values, **given}
    least, most = values.get("min_tokens"), values.get("max_tokens", PLAIN.max_tokens)
    if "min_tokens" not in given and isinstance(least, int) and isinstance(most, int):
        values["min_tokens"] = min(least, max(most, 0))
    origins = dict.fromkeys(NAMES, GENERAL) | defaults.origins | dict.fromkeys(given, REQUEST)
    return Effective(SamplingParams(**values), origins)  # type: ignore[arg-type]


def _expect_known(overrides: Mapping[str, object]) -> None:
    """SettingError for a name that nothing can be set by; neutral values of what is not supported are nothing."""
    known = (SWITCH, *FIELDS, *LENGTHS)
    for name, value in overrides.items():
        if name in known or (name in NEUTRAL and asks_nothing(value, NEUTRAL[name])):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else "It knows " + ", ".join(known) + "."
        raise SettingError(f"{SETTING} has {name}={value!r}, which is not supported.", hint)


def _faults(values: Mapping[str, object]) -> Iterator[tuple[str, RequestError]]:
    """The fields whose values no request could have. Lengths are held against each other only in a request."""
    for name, value in values.items():
        try:
            SamplingParams(**{"max_tokens": None, name: value})  # type: ignore[arg-type]
        except RequestError as error:
            yield name, error
