"""Starts an LLM from a command's flags, or finds a server, saying what takes time; makes SamplingParams.

It generates nothing.

Impossible values of flags are usage errors (exit code 2), raised before the model is touched.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import click

from pelton.cli.fetching import fetch_section, fetched, shown_name
from pelton.cli.options import ENGINE_FLAGS, FLAG_OF, Flags, engine_settings, explain, sampling_settings
from pelton.cli.partner import Server
from pelton.cli.settings.serve_flags import SETTINGS, WRONG, Kind, parse, template_text
from pelton.cli.terminal import Status, say, say_notes
from pelton.core.config import resolve
from pelton.core.environment import API_KEY, KNOWN, setting_variables
from pelton.core.errors import CheckpointError, RequestError, SettingError
from pelton.core.params import DRAWING, SamplingParams
from pelton.engine.llm import LLM
from pelton.engine.needs import check_names
from pelton.models import overrides
from pelton.sampling import effective
from pelton.sampling.effective import FLAG, GENERAL, MODEL, REQUEST, Effective

ORIGINS = {REQUEST: "its flag", FLAG: "--override-generation-config", MODEL: "the model", GENERAL: "default"}
ONE_USER: dict[str, object] = {"max_num_seqs": 1}
FALLBACK: dict[str, object] = {"temperature": 0.7, "top_p": 0.95}


def load(reference: str, flags: Flags, expect: Callable[[Path, Mapping[str, object]], None] | None = None) -> LLM:
    """The model, ready to answer; fetched first if it must be. `flags` as parsed by engine_options.

    `expect` looks at the model's files and the settings before any weights are read; what it raises, this does.
    """
    settings = {**ONE_USER, **engine_settings(flags)}
    if settings.get("chat_template") is not None:
        file = str(settings["chat_template"])
        settings["chat_template"] = template_text(file, f"--chat-template {file}")
    try:
        config = resolve(reference, settings)
        check_names(config)
        overrides.overrides_of(config.model.hf_overrides)
        effective.overrides_of(config.model.override_generation_config)
    except SettingError as error:
        raise click.UsageError(explain(error)) from error
    say_notes(_unread(settings))
    path = fetched(reference, fetch_section(flags))
    settings.pop("revision", None)  # it was the model's name's, not the path's
    if expect is not None:
        expect(path, settings)
    status = Status(f"loading {shown_name(reference, path)} ...")
    with _naming("--tokenizer", settings.get("tokenizer")), status:
        llm = LLM(str(path), **settings)
    say_notes(dict.fromkeys((*status.warnings, *llm.report.notes)))  # notes are logged as warnings, too
    if flags.get("verbose"):
        say("\n".join(llm.report.lines()))
    return llm


def _unread(settings: Mapping[str, object]) -> list[str]:
    """Notes about variables of the server's settings, which have no effect here."""
    names = [name for name, setting in SETTINGS.items() if not setting.door and name not in settings]
    return [
        f"The variable {variable} is for pelton serve alone; the flag here is {SETTINGS[name].flag}."
        if name in ENGINE_FLAGS
        else f"The variable {variable} is for pelton serve alone."
        for name, (variable, _) in setting_variables(names).items()
        if variable not in KNOWN
    ]


@contextmanager
def _naming(flag: str, value: object) -> Iterator[None]:
    """Errors about what the flag names say so."""
    try:
        yield
    except CheckpointError as error:
        if value is None or str(value) not in error.cause:
            raise
        raise CheckpointError(f"{flag}: {error.cause}", error.remedy) from error
    except RequestError as error:
        raise RequestError(f"{flag} {value}: {error.cause}", error.remedy) from error


def check_sampling(flags: Flags) -> None:
    """A usage error if a sampling flag has an impossible value, before time is spent on loading."""
    try:
        SamplingParams(**_given(flags))  # type: ignore[arg-type]
    except RequestError as error:
        raise click.UsageError(explain(error)) from error


def sampling(llm: LLM, flags: Flags) -> Effective:
    """What the flags say over what the model recommends, with origins; `flags` as parsed by sampling_options.

    Where neither says how to draw, FALLBACK does: drawing from all tokens as they are suits few small models.
    """
    try:
        chosen = llm.explain_sampling(_given(flags))
    except RequestError as error:
        raise click.UsageError(explain(error)) from error
    if all(chosen.origins[name] == GENERAL for name in DRAWING):
        chosen = Effective(replace(chosen.params, **FALLBACK), chosen.origins)  # type: ignore[arg-type]
    if flags.get("verbose"):
        say(f"sampling {_told(chosen)}")
    return chosen


def _given(flags: Flags) -> dict[str, object]:
    return {**sampling_settings(flags), "max_tokens": flags.get("max_tokens")}


def _told(chosen: Effective) -> str:
    """The values that somebody chose, and those that say how to draw, with where they come from."""
    values = {field.name: getattr(chosen.params, field.name) for field in fields(SamplingParams)}
    origins = {**chosen.origins, "max_tokens": GENERAL}
    told = [name for name in values if name in DRAWING or origins[name] != GENERAL]
    return ", ".join(f"{name} {values[name]} ({ORIGINS[origins[name]]})" for name in told)


@contextmanager
def server(flags: Flags, model: str | None) -> Iterator[Server]:
    """The server of --url, with the flags of server_options; a usage error for flags that are about a model here."""
    local = [FLAG_OF[name] for name in engine_settings(flags)]
    if flags.get("prompt_logprobs") is not None:
        local.append(FLAG_OF["prompt_logprobs"])
    if local:
        raise click.UsageError(f"{local[0]} is about a model in this process, and --url asks another one.")
    key = flags.get("api_key") or key_of_environment()
    # An HTTP client takes a tenth of a second to import, which a model in this process can do without.
    remote = import_module("pelton.cli.remote").Remote
    with remote(str(flags["url"]), key if isinstance(key, str) else None, model) as asked:
        yield asked


def key_of_environment() -> str | None:
    """The first key of the variable that gives a server its keys."""
    text = setting_variables(["api_key"]).get("api_key", ("", ""))[1]
    if text.lstrip().startswith("["):
        try:
            keys = parse(Kind.SEVERAL, text)
        except WRONG as error:
            raise click.UsageError(f"{API_KEY} cannot work. It must be {Kind.SEVERAL.value}.") from error
        return next(iter(keys), None) if isinstance(keys, tuple) else None
    return text.partition(",")[0].strip() or None


def server_settings(flags: Flags) -> dict[str, object]:
    """What a request to a server says of sampling: what the flags say."""
    given = _given(flags)
    return given if given["max_tokens"] is not None else sampling_settings(flags)
