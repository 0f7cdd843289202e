"""The `pelton` command: finds the subcommand, turns errors into one line and an exit code. It does no work of its own.

Exit codes: 0 done, 1 an error, 2 a command that cannot be understood, 130 stopped by Ctrl-C.
Invariant: a command's module is imported only when that command runs, so that `pelton --help` costs nothing.
"""

import io
import sys
from difflib import get_close_matches

import click

import pelton
from pelton.cli.lazy import LazyGroup
from pelton.cli.options import explain, wants_debug
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
    "bench": ("pelton.cli.commands.bench:bench", "Measure a model or a server."),
    "pull": ("pelton.cli.commands.pull:pull_model", "Fetch a model into the cache."),
    "program": ("pelton.cli.commands.program:program", "Show what a model computes in a step, and what it costs."),
    "collect-env": ("pelton.cli.commands.collect_env:collect_env", "Show versions and the machine, for reports."),
}


class Commands(LazyGroup):
    """The group of all commands; knows their names and help lines without importing them."""

    lazy = COMMANDS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
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


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(pelton.__version__, prog_name="pelton")
def cli() -> None:
    """Pelton runs language models: lossless, fast, explainable.

    `pelton COMMAND --help` tells all about one command.
    """


def main() -> None:
    """The console script."""
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
        say(f"error: {error if error.filename else error.strerror}.")
        sys.exit(1)


if __name__ == "__main__":
    main()
