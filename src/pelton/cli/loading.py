"""Starts an LLM from a command's flags, saying what takes time; makes its SamplingParams. It generates nothing.

Impossible values of flags are usage errors (exit code 2), raised before the model is touched.
"""

from dataclasses import replace
from pathlib import Path

import click

from pelton.checkpoint.pull import pull
from pelton.cli.options import Flags, engine_settings, sampling_settings
from pelton.cli.terminal import Status, decode_text, say, shows_progress
from pelton.core.config import resolve
from pelton.core.errors import RequestError, SettingError
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM

GENERAL = SamplingParams()
DRAWING = ("temperature", "top_p", "top_k", "min_p")
FALLBACK: dict[str, object] = {"temperature": 0.7, "top_p": 0.95}


def load(reference: str, flags: Flags) -> LLM:
    """The model, ready to answer; fetched first if it must be. `flags` as parsed by engine_options."""
    settings: dict[str, object] = {"max_num_seqs": 1, **engine_settings(flags)}
    template = settings.get("chat_template")
    if template is not None:
        settings["chat_template"] = decode_text(Path(str(template)).read_bytes(), str(template))
    try:
        resolve(reference, settings)
    except SettingError as error:
        raise click.UsageError(str(error)) from error
    path = pull(reference, progress=shows_progress())
    with Status(f"loading {path.name} ..."):
        llm = LLM(str(path), **settings)
    if flags.get("verbose"):
        say("\n".join(llm.report.lines()))
    return llm


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
        raise click.UsageError(str(error)) from error
