"""Fetching a model for a command: its flags as a section, and the question about a model's terms on a terminal.

What is fetched, and how, is checkpoint/fetch's. Invariant: nobody but the user at a terminal, or a flag, accepts terms.
"""

import sys
from dataclasses import fields, replace
from pathlib import Path

import click

from pelton.checkpoint.fetch.pull import pull
from pelton.checkpoint.fetch.sources import local_path
from pelton.cli.options import Flags, explain
from pelton.cli.terminal import Failed, say
from pelton.core.config import EngineConfig, FetchSection, resolve
from pelton.core.errors import SettingError, TermsError


def fetch_section(flags: Flags) -> FetchSection:
    """The section of flags as parsed by fetch_options or engine_options; a usage error for what cannot work."""
    given = {field.name: flags[field.name] for field in fields(FetchSection) if flags.get(field.name) is not None}
    try:
        return resolve("", given).fetch
    except SettingError as error:
        raise click.UsageError(explain(error)) from error


def fetched(
    reference: str, fetch: FetchSection, *, force: bool = False, verify: bool = False, weights: bool = True
) -> Path:
    """As pull, telling of its progress; somebody at a terminal is asked about terms that no flag accepts."""
    try:
        return pull(reference, fetch, progress=True, force=force, verify=verify, weights=weights)
    except TermsError as error:
        if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        say(error.cause)
        if not _accepted():
            raise Failed("The terms were not accepted, so nothing was fetched.") from error
    return pull(
        reference, replace(fetch, accept_terms=True), progress=True, force=force, verify=verify, weights=weights
    )


def _accepted() -> bool:
    """What somebody at the terminal answers; asked again until it is yes or no."""
    while True:
        question = "Have you read them, and do you accept them? [y/N]"
        answer = str(click.prompt(question, default="", show_default=False, err=True)).strip()
        if answer.lower() in ("y", "yes"):
            return True
        if answer.lower() in ("", "n", "no"):
            return False
        say("Please answer y (yes) or n (no).")


def fetched_config(config: EngineConfig) -> EngineConfig:
    """The settings with the model's path in place of its name."""
    path = fetched(config.model.model, config.fetch)
    return replace(config, model=replace(config.model, model=str(path)), fetch=replace(config.fetch, revision=None))


def shown_name(reference: str, path: Path) -> str:
    """What to call a model while it loads: its file; a fetched folder by its reference, whose own name is a commit."""
    return path.name if path.is_file() or local_path(reference) is not None else reference
