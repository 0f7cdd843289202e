"""LazyGroup: a group of commands that knows their names and help lines and imports only the one that runs.

It refuses words that click would take for something else. Invariant: what a command may be given, the command says.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import click

from pelton.cli.settings.foreign_flags import foreign_word


def attribute_at(path: str) -> Any:
    """What "module:name" stands for; the module is imported only now."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


class LazyGroup(click.Group):
    """Subclasses fill `lazy`: name -> (module:command, one line of help)."""

    lazy: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group) and (why := foreign_word(command, words)):
            raise click.UsageError(why, ctx)
        return name, command, words

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        command = attribute_at(self.lazy[cmd_name][0])
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])
