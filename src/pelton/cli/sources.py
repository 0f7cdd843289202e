"""Where the settings of `pelton serve` come from: flags, environment, a file; who wins, and what errors say of it.

It reads; what a value may be, others check. Invariant: each value knows how its user wrote it, and errors say that.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click
import yaml

from pelton.cli.foreign_flags import ALIASES, ALWAYS_ON, UNSUPPORTED
from pelton.cli.options import explain
from pelton.cli.serve_flags import SETTINGS, WRONG, Kind, Setting, parse
from pelton.core.config import EngineConfig, resolve
from pelton.core.environment import PREFIX, setting_variables, unknown_variables
from pelton.core.errors import SettingError
from pelton.serve.settings import ServeSettings

SECRET = "api_key"
# What may stand for a setting on the command line and, without the hyphens before it, in a file.
FLAGS = {
    **{setting.flag: setting.name for setting in SETTINGS.values()},
    **{flag: a.setting for flag, a in ALIASES.items()},
}


@dataclass(frozen=True, slots=True)
class Given:
    """A setting that somebody set: its value, where (a flag, a variable, a file), and how it is written there."""

    setting: Setting
    value: object
    origin: str
    written: str


Found = dict[str, Given]


def given(setting: Setting, raw: object, origin: str, written: str) -> Given:
    """The setting with its value; a usage error where that cannot be one."""
    try:
        return Given(setting, parse(setting.kind, raw), origin, written)
    except WRONG as error:
        why = f" {error.message}" if isinstance(error, click.BadParameter) else f" It must be {setting.kind.value}."
        raise click.UsageError(f"{written} cannot work.{why}") from error


def from_flags(flags: Iterable[tuple[str, object]]) -> Found:
    """Settings of (flag as written, its value); a usage error where two spellings of one are given."""
    found: Found = {}
    for flag, value in flags:
        alias = ALIASES.get(flag)
        setting = SETTINGS[FLAGS[flag]]
        raw = alias.value if alias is not None and alias.value is not None else value
        negative = setting.kind is Kind.SWITCH and raw is False and alias is None
        spelled = f"--no-{flag.removeprefix('--')}" if negative else flag
        if setting.name in found:
            raise click.UsageError(
                f"{found[setting.name].origin} and {spelled} are the same setting. Give one of them."
            )
        found[setting.name] = given(setting, raw, spelled, _written(setting, spelled, raw, " "))
    return found


def _written(setting: Setting, name: str, raw: object, between: str) -> str:
    """As the user wrote it, but for secrets."""
    if setting.name == SECRET or (isinstance(raw, bool) and between == " "):
        return name
    text = " ".join(map(str, raw)) if isinstance(raw, (tuple, list)) else str(raw)
    return f"{name}{between}{text if len(text) < 200 else text[:200] + '...'}"


def from_environment() -> tuple[Found, list[str]]:
    """Settings of the environment, and notes about variables that nobody reads."""
    found: Found = {}
    for name, (variable, text) in setting_variables(SETTINGS).items():
        setting = SETTINGS[name]
        several = setting.kind is Kind.SEVERAL and not text.lstrip().startswith("[")
        raw: object = [part.strip() for part in text.split(",") if part.strip()] if several else text
        found[name] = given(setting, raw, variable, _written(setting, variable, text, "="))
    notes = []
    variables = [PREFIX + name.upper() for name in SETTINGS]
    for name in unknown_variables([*SETTINGS, "config"]):
        near = get_close_matches(name, variables, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        notes.append(f"The variable {name} is set, and nothing here reads it{hint}")
    return found, notes


def from_file(file: str) -> tuple[Found, list[str]]:
    """Settings of a YAML file whose keys are the flags without their hyphens; a usage error naming file and key."""
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"--config {file} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        place = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f", line {place.line + 1}" if place is not None else ""
        raise click.UsageError(f"--config {file} is no YAML{where}.") from error
    if content is None:
        return {}, []
    if not isinstance(content, Mapping):
        raise click.UsageError(f"--config {file} must hold a table such as `port: 8001`.")
    found: Found = {}
    notes: list[str] = []
    for key, raw in content.items():
        written = f"{file}: {key}"
        flag, value = _flag_of_key(str(key), raw, file)
        if flag in ALWAYS_ON:
            notes.append(always_on(flag, bool(given(_SWITCH, value, file, written).value), written))
            continue
        alias, setting = ALIASES.get(flag), SETTINGS[FLAGS[flag]]
        if alias is not None and alias.value is not None:
            value = alias.value if given(_SWITCH, value, file, written).value else not alias.value
        if setting.name in found:
            raise click.UsageError(f"{found[setting.name].written} and {written} are the same setting.")
        found[setting.name] = given(setting, value, file, _written(setting, written, value, ": "))
    return found, notes


_SWITCH = Setting("switch", Kind.SWITCH, "", "", "")


def always_on(flag: str, wanted: bool, written: str) -> str:
    """What to say of a switch for something that is always on; a usage error where it is to be off."""
    if not wanted:
        raise click.UsageError(f"{written} cannot work: {ALWAYS_ON[flag]}.")
    return f"{written} changes nothing: {ALWAYS_ON[flag]}."


def _flag_of_key(key: str, raw: object, file: str) -> tuple[str, object]:
    """The flag that a key stands for, and its value; `no-` before a switch turns it round."""
    name = key.strip().lstrip("-").replace("_", "-")
    for flag in (f"--{name}", f"-{name}"):
        if flag in FLAGS or flag in ALWAYS_ON:
            return flag, raw
    positive = "--" + name.removeprefix("no-")
    is_switch = positive in ALWAYS_ON or (positive in FLAGS and SETTINGS[FLAGS[positive]].kind is Kind.SWITCH)
    if name.startswith("no-") and is_switch:
        return positive, not given(_SWITCH, raw, file, f"{file}: {key}").value
    raise click.UsageError(f"{file}: {key} is no setting. {foreign(f'--{name}') or nearest(f'--{name}')}")


def foreign(flag: str) -> str:
    """What to say of a flag that vLLM has and that means nothing here; "" for any other."""
    if flag not in UNSUPPORTED:
        return ""
    near = UNSUPPORTED[flag]
    hint = f" What is there for it: {SETTINGS[near].flag}." if near in SETTINGS else f" {nearest(flag)}"
    return f"{flag} is a flag of vLLM that is not supported here.{hint}"


def nearest(flag: str) -> str:
    """The supported flag that is written most alike."""
    near = get_close_matches(flag, FLAGS, n=1, cutoff=0.5)
    return f"The nearest that is supported: {near[0]}." if near else "pelton serve --help lists what is supported."


def engine_config(model: str, found: Mapping[str, Given]) -> EngineConfig:
    """The engine's settings; a usage error that says how the bad one is written."""
    mine = {
        one.setting.field: one.value for one in found.values() if not one.setting.door and one.setting.name != "model"
    }
    try:
        return resolve(model, mine)
    except SettingError as error:
        raise click.UsageError(as_written(error, found)) from error


def door_settings(model: str, found: Mapping[str, Given]) -> ServeSettings:
    """The door's settings, the model's name as it was given among them; a usage error as above."""
    mine: dict[str, object] = {one.setting.field: one.value for one in found.values() if one.setting.door}
    mine["served_model_names"] = mine.get("served_model_names") or (model,)
    try:
        return ServeSettings(**mine)  # type: ignore[arg-type]
    except SettingError as error:
        raise click.UsageError(as_written(error, found)) from error


def as_written(error: SettingError, found: Mapping[str, Given]) -> str:
    """The error's text with settings as their user wrote them: the one that it begins with in full, others by name."""
    name = error.cause.partition("=")[0]
    one = found.get(name)
    if one is not None:
        value = list(one.value) if isinstance(one.value, tuple) else one.value
        beginning = f"{name}={value!r}"
        if error.cause.startswith(beginning):
            return f"{one.written}{error.cause[len(beginning) :]} {error.remedy}"
    return explain(SettingError(_DOOR_NAMES.sub(lambda match: _place(match[0], found), str(error))))


def _place(name: str, found: Mapping[str, Given]) -> str:
    return found[name].origin if name in found else SETTINGS[name].flag


_DOOR_NAMES = re.compile(
    r"\b(?:{})\b".format("|".join(name for name, setting in SETTINGS.items() if setting.door and "_" in name))
)
