"""`pelton bench`: how fast a server (serve) or a model in this process (the others) is.

Names of flags and of results' keys are those of vLLM's benchmarks. Invariant: what measures a server loads no model.
"""

import click

from pelton.cli.lazy import LazyGroup

HERE = "pelton.cli.commands.bench"
# name -> (module:command, one line of help)
COMMANDS = {
    "serve": (f"{HERE}.serve:serve_command", "Send requests to a server and measure its answers."),
    "latency": (f"{HERE}.offline:latency_command", "Measure how long one batch of prompts takes."),
    "throughput": (f"{HERE}.offline:throughput_command", "Measure how many tokens per second a model computes."),
    "baselines": (f"{HERE}.baselines:baselines_command", "Measure what each technique gains here over doing without."),
    "startup": (f"{HERE}.startup:startup_command", "Measure the time from a process's start to its first token."),
    "sweep": (f"{HERE}.sweep:sweep_command", "Measure waits for tokens by the size of steps and their company."),
}


class BenchCommands(LazyGroup):
    """See COMMANDS."""

    lazy = COMMANDS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no pelton bench {args[0]}. There are: {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)


@click.command("bench", cls=BenchCommands, no_args_is_help=True)
def bench() -> None:
    """Measure a model or a server."""
