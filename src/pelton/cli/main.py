"""The `pelton` command: finds the subcommand, turns errors into one line and an exit code. It does no work of its own.

Exit codes: 0 done, 1 an error, 2 a command that cannot be understood, 130 stopped by Ctrl-C.
Invariant: a command's module is imported only when that command runs, so that `pelton --help` costs nothing.
"""

import io
import signal
import sys
from difflib import get_close_matches

import click

import pelton
from pelton.cli.lazy import LazyGroup
from pelton.cli.options import explain, wants_debug
from pelton.cli.settings.foreign_flags import ALIASES, DEFAULTS, flag_of, foreign, nearest_flag, spellings
from pelton.cli.terminal import INTERRUPTED, Failed, check_streams, drop_output, say
from pelton.core.errors import PeltonError

# name -> (module:command, one line of help)
COMMANDS = {
    "chat": ("pelton.cli.commands.chat:chat", "Talk to a model."),
    "complete": ("pelton.cli.commands.complete:complete", "Continue a text."),
    "serve": ("pelton.cli.commands.serve:serve", "Serve a model over HTTP, with OpenAI's routes."),
    "verify": (
        "pelton.cli.commands.verify:verify_model",
        "Check that answers stay the same bits under every schedule.",
    ),
    "perplexity": (
        "pelton.cli.commands.perplexity:perplexity_command",
        "Measure how well a model foresees a text.",
    ),
    "quantize": ("pelton.cli.commands.quantize:quantize", "Write a model with quantised weights."),
    "bench": ("pelton.cli.commands.bench:bench", "Measure a model or a server."),
    "probe": ("pelton.cli.commands.probe:probe", "Measure this machine: what limits the speed of a model here."),
    "pull": ("pelton.cli.commands.pull:pull_model", "Fetch a model into the cache."),
    "tokens": ("pelton.cli.commands.tokens:tokens", "Count the tokens of a text with several models, and their costs."),
    "program": ("pelton.cli.commands.program:program", "Show what a model computes in a step, and what it costs."),
    "kv": ("pelton.cli.commands.live.kv:kv", "Show what the KV memory of a server holds."),
    "simulate": ("pelton.cli.commands.simulate:simulate_command", "Replay recorded traffic in virtual time."),
    "collect-env": ("pelton.cli.commands.collect_env:collect_env", "Show versions and the machine, for reports."),
}


_WORDS = "pelton.words"  # of the command line, behind `pelton`


class Commands(LazyGroup):
    """The group of all commands; knows their names and help lines without importing them."""

    lazy = COMMANDS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {name!r}. {hint}")
        found = super().resolve_command(ctx, args)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise click.UsageError(_no_flag(error, ctx.meta[_WORDS]), error.ctx) from error
        except PeltonError as error:
            if wants_debug(ctx):
                raise
            raise Failed(explain(error)) from error
        except MemoryError as error:
            if wants_debug(ctx):
                raise
            raise Failed("Not enough memory for these settings. Choose smaller ones, or a smaller model.") from error
        except KeyboardInterrupt:
            if wants_debug(ctx):
                raise
            say("")
            raise click.exceptions.Exit(INTERRUPTED) from None


def _no_flag(error: click.NoSuchOption, words: list[str]) -> str:
    """What to say of a flag that the command does not have: why, or which one is meant."""
    name = error.option_name
    params = error.ctx.command.params if error.ctx is not None else []
    known = [flag for param in params for flag in spellings(param)]
    # Of -tp click tells -t alone.
    written = next((word for word in words if word.startswith(name) and word not in known), name).partition("=")[0]
    alias = ALIASES.get(written)
    if alias is not None and flag_of(alias.setting) in known:
        return f"There is no flag {written} here. What is there for it: {flag_of(alias.setting)}."
    if why := foreign(written, [flag for flag in known if flag != DEFAULTS]):
        return why
    near = nearest_flag(name, known)
    command = error.ctx.command_path if error.ctx is not None else "pelton"
    hint = f"Did you mean {near}?" if near else f"{command} --help lists what there is."
    return f"There is no flag {name}. {hint}"


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(pelton.__version__, prog_name="pelton")
def cli() -> None:
    """Pelton runs language models: lossless, fast, explainable.

    `pelton COMMAND --help` tells all about one command.
    """


def main() -> None:
    """The console script.

    While a command is imported, Ctrl-C ends the process at once: nothing is done yet, and packages that are stopped
    midway tell of errors that are none.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        check_streams()
    except Failed as error:
        error.show()
        sys.exit(error.exit_code)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A model may say what this terminal's encoding lacks; that must not end the program.
            stream.reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")
    try:
        cli(prog_name="pelton")
    except OSError as error:  # a disk or device that fails, or takes no more
        if "--debug" in sys.argv:
            raise
        drop_output()
        say(f"error: {error.strerror}{f': {error.filename!r}' if error.filename else ''}.")
        sys.exit(1)


if __name__ == "__main__":
    main()
