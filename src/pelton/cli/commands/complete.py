"""`pelton complete`: continues one text and ends. No chat template is applied."""

import sys
from pathlib import Path

import click

from pelton.cli.answer import Printed, print_answer, show_logprobs, show_remote_logprobs
from pelton.cli.loading import check_sampling, load, sampling, server, server_settings
from pelton.cli.options import (
    Flags,
    answering_options,
    choose_model,
    completion_options,
    debug_option,
    looks_like_model,
    max_tokens_option,
    model_options,
    sampling_options,
    server_options,
)
from pelton.cli.terminal import INTERRUPTED, check_text, decode_text, emit, need_stdin, say
from pelton.core.errors import BackendError

MAX_TOKENS = 128
PROMPT_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)


@click.command("complete")
@model_options
@click.argument("prompt", required=False)
@click.option("--prompt-file", type=PROMPT_FILE, help="Read the prompt from this file; -: from stdin.")
@click.option("--suffix", help="Write what stands between PROMPT and this text, if the model can fill in.")
@max_tokens_option(None, f"Most tokens of the answer [{MAX_TOKENS}].")
@sampling_options
@completion_options
@click.option("--stats", is_flag=True, help="Tell speed and sizes after the answer.")
@server_options
@answering_options
@debug_option
def complete(
    model: str | None, model_flag: str | None, prompt: str | None, prompt_file: str | None, **flags: object
) -> None:
    """Continue PROMPT with MODEL and print what comes after it.

    A lone argument is the prompt, unless it looks like a model: a short name, pypi:NAME, a file or folder that exists,
    or a path in form (with --model it is always the prompt). Without a prompt it is read from --prompt-file or stdin,
    less one newline at its end. Tokens are drawn as the model recommends, where no flag says otherwise; if neither says
    anything, with temperature 0.7 and top-p 0.95.
    """
    if model is not None and prompt is None and (model_flag or not looks_like_model(model)):
        model, prompt = None, model
    reference = choose_model(model, model_flag)
    gap = {"prompt": _prompt_text(prompt, prompt_file), **_suffix(flags)}
    check_sampling(flags)
    chosen = {**flags, "max_tokens": flags["max_tokens"] or MAX_TOKENS}
    if flags["url"] is not None:
        with server(flags, reference if model or model_flag else None) as remote:
            printed = remote.print_answer("/completions", {**server_settings(chosen), **gap})
        context = None
    else:
        with load(reference, flags) as llm:
            printed = print_answer(llm, gap, sampling(llm, chosen).params)
            context = llm.report.max_model_len
    _tell(printed, context, flags)


def _tell(printed: Printed, context: int | None, flags: Flags) -> None:
    """All there is to say behind the answer; raises where it is not what was asked for."""
    cut = printed.cut(context)
    if not printed.text.endswith("\n"):
        emit("\n")
    if cut and flags["n"] in (None, 1) and printed.tokens != flags["max_tokens"]:  # else it is what was asked for
        say(cut, dim=True)
    if printed.output is not None:
        show_logprobs(printed.output)
    if printed.logprobs:
        show_remote_logprobs(printed.logprobs)
    if flags["stats"]:
        say(printed.stats())
    if printed.error:
        raise BackendError(printed.error)
    if printed.stopped:
        raise click.exceptions.Exit(INTERRUPTED)


def _suffix(flags: Flags) -> dict[str, str]:
    if not flags["suffix"]:
        return {}
    check_text(str(flags["suffix"]), "The suffix")
    return {"suffix": str(flags["suffix"])}


def _prompt_text(argument: str | None, file: str | None) -> str:
    if argument is not None:
        if file is not None:
            raise click.UsageError("The prompt is given twice: as an argument and by --prompt-file.")
        check_text(argument, "The prompt")
        return argument
    if file not in (None, "-"):
        return decode_text(Path(str(file)).read_bytes(), f"The prompt file {file}")
    stdin = need_stdin()
    if file is None and sys.stdin.isatty():
        raise click.UsageError('There is no prompt. Write: pelton complete "Once upon a time"')
    return decode_text(stdin.read(), "The prompt from stdin")
