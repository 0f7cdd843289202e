"""`pelton serve`: a model behind HTTP. It resolves the settings; serving is serve/run.py's.

Invariant: a setting that cannot work, and an address that cannot be had, are told before the model is touched.
"""

from collections.abc import Mapping
from contextlib import closing

import click

from pelton.cli.fetching import fetched_config
from pelton.cli.options import CHOOSING, Choosing, choose_model, debug_option, wants_debug
from pelton.cli.settings import sources
from pelton.cli.settings.foreign_flags import ALIASES, ALWAYS_ON, foreign
from pelton.cli.settings.serve_flags import SETTINGS, Kind, Setting
from pelton.cli.settings.sources import FLAGS, Found
from pelton.cli.terminal import Failed, say, say_notes
from pelton.core.clock import SystemClock
from pelton.core.environment import setting_variables
from pelton.core.errors import BackendError, CapacityError, SettingError
from pelton.serve.listening import listen
from pelton.serve.run import run

METAVARS = {
    Kind.TEXT: "TEXT",
    Kind.WORD: "TEXT",
    Kind.WHOLE: "INTEGER",
    Kind.NUMBER: "NUMBER",
    Kind.SIZE: "SIZE",
    Kind.SEVERAL: "TEXT",
    Kind.LENGTH: "INTEGER",
    Kind.TABLE: "JSON",
    Kind.TEMPLATE: "FILE",
}


class ServeCommand(click.Command):
    """The command with the flags of SETTINGS, grouped; knows what to say of those that there are not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [_hyphens(word) for word in args]
        words = self._spread(words)
        for word in words:
            if why := foreign(word.partition("=")[0], FLAGS):
                raise click.UsageError(why, ctx)
        try:
            return super().parse_args(ctx, words)
        except click.NoSuchOption as error:
            name = error.option_name
            raise click.UsageError(f"There is no flag {name}. {sources.nearest(name)}", ctx) from error

    def _spread(self, words: list[str]) -> list[str]:
        """`--served-model-name a b` as two flags, where the model stands before it and so is not one of them."""
        kinds = {spelled: param for param in self.params for spelled in (*param.opts, *param.secondary_opts)}
        spread: list[str] = []
        flag, takes, model_given = "", False, False
        for word in words:
            param = kinds.get(word.partition("=")[0])
            if param is not None and word.startswith("-"):
                takes = "=" not in word and isinstance(param, click.Option) and not param.is_flag
                flag = word if takes and isinstance(param, click.Option) and param.multiple else ""
                model_given = model_given or FLAGS.get(word.partition("=")[0]) == "model"
            elif takes:
                takes = False
            elif flag and model_given and not word.startswith("-"):
                spread.append(flag)
            else:
                model_given, flag = True, ""
            spread.append(word)
        return spread

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                setting = SETTINGS.get(param.name or "")
                groups.setdefault(setting.group if setting else "Others", []).append(record)
        for group in dict.fromkeys([setting.group for setting in SETTINGS.values()] + ["Others"]):
            with formatter.section(group):
                formatter.write_dl(groups.get(group, []))


def _hyphens(word: str) -> str:
    """`--max_num_seqs=8` with hyphens in the flag's name, as vLLM takes it too."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _option(setting: Setting) -> click.Option:
    flag = setting.flag
    if setting.kind is Kind.SWITCH:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        return click.Option([both, setting.name], default=None, help=setting.help)
    names = [flag, "-m"] if setting.name == "model" else [flag]
    several = setting.kind is Kind.SEVERAL
    metavar = METAVARS[setting.kind]
    kind = Choosing if setting.name in CHOOSING else click.Option
    return kind([*names, setting.name], multiple=several, metavar=metavar, help=setting.help)


def _alias_option(flag: str) -> click.Option:
    alias = ALIASES[flag]
    if alias.value is not None:
        return click.Option([flag, _param(flag)], is_flag=True, default=None, hidden=True)
    several = SETTINGS[alias.setting].kind is Kind.SEVERAL
    return click.Option([flag, _param(flag)], multiple=several, hidden=True)


def _param(flag: str) -> str:
    """The name under which click hands over the value of an alias."""
    return "alias" + flag.replace("-", "_")


PARAMS = {setting.name: setting.flag for setting in SETTINGS.values()} | {_param(flag): flag for flag in ALIASES}


def _settings(command: click.Command) -> click.Command:
    """The command with an option for each setting and each alias."""
    command.params += [_option(setting) for setting in SETTINGS.values()]
    command.params += [_alias_option(flag) for flag in ALIASES]
    for flag in ALWAYS_ON:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        command.params.append(click.Option([both, _param(flag)], default=None, hidden=True))
    return command


@_settings
@click.command("serve", cls=ServeCommand)
@click.argument("model_argument", metavar="[MODEL]", required=False)
@click.option("--config", type=click.Path(), help="YAML file of settings; its keys are flags without --.")
@click.option("--verbose", "-v", is_flag=True, help="Tell each setting that somebody set, and where.")
@debug_option
def serve(model_argument: str | None, config: str | None, verbose: bool, **flags: object) -> None:
    """Serve MODEL over HTTP, with OpenAI's routes.

    Settings come from flags, from variables such as PELTON_MAX_NUM_SEQS, and from the --config file; the first that has
    one wins. Flags have vLLM's names; SGLang's and llama-server's are taken where they mean the same. SIGTERM and
    Ctrl-C let open requests end; a second one does not.
    """
    began = SystemClock().now()
    found, notes = _found(flags, config)
    model = _model(model_argument, found)
    engine = sources.engine_config(model, found)
    door = sources.door_settings(model, found, engine.cache)
    say_notes(notes)
    if verbose:
        for one in found.values():
            say(f"setting  {one.setting.name}: {one.written}")
    try:
        with closing(listen(door)) as listening:
            run(fetched_config(engine), door, listening, say, began)
    except (SettingError, CapacityError, BackendError) as error:
        if wants_debug(click.get_current_context()):
            raise
        raise Failed(sources.as_written(error, found)) from error


def _found(flags: Mapping[str, object], config: str | None) -> tuple[Found, list[str]]:
    """All settings that somebody set, and notes about what of it has no effect."""
    typed = [(PARAMS[name], value) for name, value in flags.items() if name in PARAMS and value not in (None, ())]
    mine = sources.from_flags(typed)
    variables, notes = sources.from_environment()
    for flag in ALWAYS_ON:
        wanted = flags[_param(flag)]
        if wanted is not None:
            notes.append(sources.always_on(flag, bool(wanted), flag if wanted else f"--no-{flag.removeprefix('--')}"))
    variable, file = setting_variables(["config"]).get("config", ("", ""))
    asked = f"--config {config}" if config else f"{variable}={file}"
    written, more = sources.from_file(config or file, asked) if config or file else ({}, [])
    return {**written, **variables, **mine}, [*notes, *more]


def _model(argument: str | None, found: Found) -> str:
    """The model of the argument, of a flag, or of a variable or a file, in this order; else the default one."""
    named = found.get("model")
    if named is not None and (argument is None or named.origin.startswith("-")):
        return choose_model(argument, str(named.value))
    return choose_model(argument, None)
