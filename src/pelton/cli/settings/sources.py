"""Where the settings of `pelton serve` come from: flags, environment, a file; who wins, and what errors say of it.

It reads; what a value may be, others check. Invariant: each value knows how its user wrote it, and errors say that.
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import yaml

from pelton.cli.settings.foreign_flags import ALIASES, ALWAYS_ON, flag_of, foreign, nearest_flag
from pelton.cli.settings.serve_flags import SETTINGS, WRONG, Kind, Setting, parse
from pelton.core.config import CacheSection, EngineConfig, resolve
from pelton.core.config import nearest as nearest_name
from pelton.core.environment import PREFIX, empty_variables, setting_variables, unknown_variables
from pelton.core.errors import PeltonError, SettingError
from pelton.engine.needs import check_names
from pelton.models import overrides
from pelton.sampling import effective
from pelton.serve.settings import ServeSettings

SECRETS = ("api_key", "hf_token", "fairness_weights")
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
        value = parse(setting.kind, raw)
    except WRONG as error:
        why = f" {error.message}" if isinstance(error, click.BadParameter) else f" It must be {setting.kind.value}."
        raise click.UsageError(f"{written} cannot work.{why}") from error
    if value == ():
        raise _empty(written.rstrip(" :=,[]"))
    return Given(setting, value, origin, written)


def _empty(written: str) -> click.UsageError:
    """Of a list that somebody meant to fill: without keys the server would be open to all."""
    return click.UsageError(f"{written} is set but empty. Give it a value, or remove it.")


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
    if setting.name in SECRETS or (isinstance(raw, bool) and between == " "):
        return name
    text = " ".join(map(str, raw)) if isinstance(raw, (tuple, list)) else str(raw)
    return f"{name}{between}{text if len(text) < 200 else text[:200] + '...'}"


def from_environment() -> tuple[Found, list[str]]:
    """Settings of the environment, and notes about variables that nobody reads."""
    found: Found = {}
    for variable in empty_variables(name for name, setting in SETTINGS.items() if setting.kind is Kind.SEVERAL):
        raise _empty(variable)
    for name, (variable, text) in setting_variables(SETTINGS).items():
        setting = SETTINGS[name]
        several = setting.kind is Kind.SEVERAL and not text.lstrip().startswith("[")
        raw: object = [part.strip() for part in text.split(",") if part.strip()] if several else text
        found[name] = given(setting, raw, variable, _written(setting, variable, text, "="))
    notes = []
    variables = [PREFIX + name.upper() for name in SETTINGS]
    for name in unknown_variables([*SETTINGS, "config"]):
        notes.append(f"The variable {name} is set, and nothing here reads it{_of_variable(name, variables)}")
    return found, notes


def _of_variable(name: str, variables: list[str]) -> str:
    """What else there is to say of a variable that nobody reads, behind that it is so."""
    said = foreign(flag_of(name.removeprefix(PREFIX).lower()), FLAGS)
    if said:
        return f": {said.partition(': ')[2]}"
    near = nearest_name(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in variables])
    return f"; did you mean {PREFIX}{near}?" if near else "."


class _Loader(yaml.SafeLoader):
    """YAML in which a table has each key once; yaml alone takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen = set()
        for key, _ in node.value:
            written = (key.tag, str(key.value))
            if written in seen:
                raise yaml.constructor.ConstructorError(None, None, f"has {key.value} twice", key.start_mark)
            seen.add(written)
        return super().construct_mapping(node, deep)


def from_file(file: str, asked: str) -> tuple[Found, list[str]]:
    """Settings of a YAML file whose keys are the flags without their hyphens; a usage error naming file and key.

    `asked`: how the user asked for the file, as "--config FILE".
    """
    try:
        content = yaml.load(Path(file).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise click.UsageError(f"{asked} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        place = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f", line {place.line + 1}" if place is not None else ""
        twice = isinstance(error, yaml.constructor.ConstructorError) and str(error.problem).endswith(" twice")
        what = error.problem if twice and isinstance(error, yaml.MarkedYAMLError) else "is no YAML"
        raise click.UsageError(f"{asked} {what}{where}.") from error
    if content is None:
        return {}, []
    if not isinstance(content, Mapping):
        raise click.UsageError(f"{asked} must hold a table such as `port: 8001`.")
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
            off = not alias.value if alias.off is None else alias.off
            value = alias.value if given(_SWITCH, value, file, written).value else off
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
    raise click.UsageError(f"{file}: {key} is no setting. {foreign(f'--{name}', FLAGS) or nearest(f'--{name}')}")


def nearest(flag: str) -> str:
    """The supported flag that this one is a slip of, or where all are told."""
    near = nearest_flag(flag, FLAGS)
    return f"Did you mean {near}?" if near else "pelton serve --help lists what there is."


def engine_config(model: str, found: Mapping[str, Given]) -> EngineConfig:
    """The engine's settings; a usage error that says how the bad one is written."""
    mine = {
        one.setting.field: one.value for one in found.values() if not one.setting.door and one.setting.name != "model"
    }
    try:
        config = resolve(model, mine)
        check_names(config)
        overrides.overrides_of(config.model.hf_overrides)
        general = effective.overrides_of(config.model.override_generation_config)
        effective.defaults_of({}, general, use_model=False)
        return config
    except SettingError as error:
        raise click.UsageError(as_written(error, found)) from error


def door_settings(model: str, found: Mapping[str, Given], cache: CacheSection) -> ServeSettings:
    """The door's settings, the model's name as it was given among them; a usage error as above, and for one that the
    engine's leave without effect.
    """
    mine: dict[str, object] = {one.setting.field: one.value for one in found.values() if one.setting.door}
    mine["served_model_names"] = mine.get("served_model_names") or (model,)
    try:
        settings = ServeSettings(**mine)  # type: ignore[arg-type]
        if settings.slot_save_path is not None and cache.no_sessions:
            raise SettingError(
                f"slot_save_path={settings.slot_save_path!r} would have no effect: {cache.no_sessions}.",
                "Leave one of them out.",
            )
        return settings
    except SettingError as error:
        raise click.UsageError(as_written(error, found)) from error


def as_written(error: PeltonError, found: Mapping[str, Given]) -> str:
    """The error's text with settings as their user wrote them: with the value that they set in full, others by name."""
    written = {_shown(one): one.written for one in found.values()}
    exact = [re.escape(text) + r"(?![\w.])" for text in sorted(written, key=len, reverse=True)]
    long = "|".join(name for name in SETTINGS if "_" in name)
    names = rf"(?P<name>{'|'.join(SETTINGS)})(?P<is>=(?=\S))|(?P<bare>{long})(?![\w/-])"

    def as_user(match: "re.Match[str]") -> str:
        if match[0] in written:
            return written[match[0]]
        name = match["name"] or match["bare"]
        place = found[name].origin if name in found else SETTINGS[name].flag
        if not place.startswith(("-", PREFIX)):
            key = SETTINGS[name].flag.removeprefix("--")
            key = key if match.start() else f"{place}: {key}"  # what an error begins with is told with its file
            return f"{key}: " if match["is"] else key
        return place + ("=" if place.startswith(PREFIX) else " ") if match["is"] else place

    return re.sub(rf"(?<![\w/.-])(?:{'|'.join([*exact, names])})", as_user, str(error))


def _shown(one: Given) -> str:
    """How errors write the setting."""
    value = list(one.value) if isinstance(one.value, tuple) else one.value
    return f"{one.setting.name}={value!r}"
