"""Starts an LLM from a command's flags, saying what takes time; makes its SamplingParams. It generates nothing.

Impossible values of flags are usage errors (exit code 2), raised before the model is touched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from pelton.checkpoint.pull import pull
from pelton.cli.options import Flags, engine_settings, explain, sampling_settings
from pelton.cli.terminal import Status, decode_text, say, say_notes
from pelton.core.config import resolve
from pelton.core.errors import CheckpointError, RequestError, SettingError
from pelton.core.params import DRAWING, SamplingParams
from pelton.engine.llm import LLM
from pelton.tokenize.chat_template import ChatTemplate

GENERAL = SamplingParams()
FALLBACK: dict[str, object] = {"temperature": 0.7, "top_p": 0.95}


def load(reference: str, flags: Flags) -> LLM:
    """The model, ready to answer; fetched first if it must be. `flags` as parsed by engine_options."""
    settings: dict[str, object] = {"max_num_seqs": 1, **engine_settings(flags)}
    if settings.get("chat_template") is not None:
        settings["chat_template"] = _template(str(settings["chat_template"]))
    try:
        resolve(reference, settings)
    except SettingError as error:
        raise click.UsageError(explain(error)) from error
    path = pull(reference, progress=True)
    with _naming("--tokenizer", settings.get("tokenizer")), Status(f"loading {path.name} ..."):
        llm = LLM(str(path), **settings)
    say_notes(llm.report.notes)
    if flags.get("verbose"):
        say("\n".join(llm.report.lines()))
    return llm


def _template(file: str) -> str:
    """The text of --chat-template; RequestError naming the flag if it is none."""
    text = decode_text(Path(file).read_bytes(), f"--chat-template {file}")
    if not text.strip():
        raise RequestError(f"--chat-template {file} is empty.", "Leave it out to use the model's own.")
    with _naming("--chat-template", file):
        ChatTemplate(text)
    return text


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
    sampling_params(SamplingParams(), flags)


def sampling_params(base: SamplingParams, flags: Flags) -> SamplingParams:
    """`base` (the model's recommendation) with the flags that were given; `flags` as parsed by sampling_options.

    Where neither says how to draw, FALLBACK does: drawing from all tokens as they are suits few small models.
    """
    given = sampling_settings(flags)
    silent = all(getattr(base, name) == getattr(GENERAL, name) and name not in given for name in DRAWING)
    chosen = {**(FALLBACK if silent else {}), **given, "max_tokens": flags.get("max_tokens")}
    try:
        return replace(base, **chosen)  # type: ignore[arg-type]
    except RequestError as error:
        raise click.UsageError(explain(error)) from error
