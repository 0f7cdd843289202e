"""`pelton perplexity`: how well a model foresees a text. It parses and prints; what it prints is a Report's."""

import json
from pathlib import Path

import click
from tqdm import tqdm

from pelton.checkpoint.fetch.sources import PYPI, SHORT_NAMES, WEIGHT_FILES, local_path
from pelton.cli.loading import load
from pelton.cli.options import Flags, choose_model, debug_option, engine_options, looks_like_model
from pelton.cli.terminal import check_text, emit, need_stdin, shows_progress, table_lines
from pelton.core.clock import SystemClock
from pelton.core.errors import RequestError
from pelton.engine.llm import LLM
from pelton.measure.perplexity import CONVENTIONS, CTX_SIZE, HF, LLAMA_CPP, Plan, Report, Tally, perplexity

STDIN = "-"
MAX_NUM_SEQS = 8
FLAGS = {"ctx_size": "--ctx-size", "stride": "--stride", "bos": "--bos"}
UNKNOWN = "-"


@click.command("perplexity")
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] FILE")
@click.option("--model", "-m", "model_flag", help="The model, in place of MODEL, as for other commands.")
@click.option(
    "--ctx-size",
    "-c",
    type=click.IntRange(min=2),
    help=f"Tokens of a window [{CTX_SIZE}, or what the model or the text has].",
)
@click.option("--stride", type=click.IntRange(min=1), help="Tokens from one window to the next [those of a window].")
@click.option(
    "--convention",
    type=click.Choice(CONVENTIONS),
    default=HF,
    show_default=True,
    help="Which tokens count: all that no window before had (hf), or the later half of each window (llama.cpp).",
)
@click.option("--bos/--no-bos", default=None, help="The model's first token stands before the text [if it wants one].")
@click.option("--by-position", is_flag=True, help="A table too: perplexity by how many tokens stand before.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@engine_options
@debug_option
def perplexity_command(words: tuple[str, ...], model_flag: str | None, **flags: object) -> None:
    """Measure the perplexity of MODEL on the text in FILE (-: standard input).

    The text's tokens are cut into windows; each is scored by itself, as a prompt. Figures compare only between equal
    windows, strides and conventions, and perplexity only between equal tokenizers; bits per byte compares all.
    """
    reference, file = _words(words, model_flag)
    text = read_text(file)
    given = {name: flags[name] for name in ("max_num_seqs", "enable_prefix_caching") if flags[name] is not None}
    # Windows share no beginnings, so that keeping them would only cost memory.
    with load(reference, {**flags, "max_num_seqs": MAX_NUM_SEQS, "enable_prefix_caching": False, **given}) as llm:
        report = _measured(llm, text, _name(file), flags)
    if flags["as_json"]:
        emit(json.dumps({"model": reference, **report.record()}, ensure_ascii=False) + "\n")
        return
    emit("\n".join([*_lines(report), *(["", *_position_lines(report)] if flags["by_position"] else [])]) + "\n")


def _words(words: tuple[str, ...], model_flag: str | None) -> tuple[str, str]:
    """The model and the file; the last word is the file."""
    if len(words) > 2:
        raise click.UsageError(f"There are {len(words)} arguments; at most MODEL and FILE make sense.")
    named, file = words[0] if len(words) == 2 else None, words[-1]
    if _is_model(file):
        if named is not None and local_path(named) is not None and not _is_model(named):
            raise click.UsageError(f"The model comes first. Write: pelton perplexity {file} {named}")
        raise click.UsageError(f"{file} is a model, and FILE is missing. Write: pelton perplexity {file} FILE")
    return choose_model(named, model_flag), file


def _is_model(word: str) -> bool:
    """Whether a word means a model for certain, and no text."""
    path = local_path(word)
    if path is None:
        return word in SHORT_NAMES or word.startswith(PYPI) or word.endswith(WEIGHT_FILES)
    return path.is_dir() or word.endswith(WEIGHT_FILES)


def _name(file: str) -> str:
    return "standard input" if file == STDIN else file


def read_text(file: str) -> str:
    """The text of a file, or of standard input for -."""
    name = _name(file)
    try:
        raw = need_stdin().read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        hint = f" If it is the model, write: pelton perplexity {file} FILE" if looks_like_model(file) else ""
        raise click.UsageError(f"{file} cannot be read: {error.strerror}.{hint}") from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text (byte {error.start}).", "Convert it to UTF-8.") from None
    check_text(text, name)
    return text


def _measured(llm: LLM, text: str, name: str, flags: Flags) -> Report:
    """`name`: that of the text, for errors."""
    tokenizer, most = llm.get_tokenizer(), llm.report.max_model_len - 1
    asked = flags["ctx_size"]
    size = int(str(asked)) if asked is not None else min(CTX_SIZE, most)
    convention = str(flags["convention"])
    stride = size if flags["stride"] is None else int(str(flags["stride"]))
    if convention == LLAMA_CPP and stride != size:
        raise click.UsageError(f"--stride {stride} makes no sense with --convention {LLAMA_CPP}, of disjoint windows.")
    bos = tokenizer.add_bos if flags["bos"] is None else bool(flags["bos"])
    with tqdm(unit="window", disable=not shows_progress(), leave=False) as bar:

        def told(done: int, of: int, tally: Tally) -> None:
            bar.total = of
            bar.set_postfix_str(f"perplexity {tally.perplexity:.4f}", refresh=False)
            bar.update(done - bar.n)

        try:
            return perplexity(llm, text, Plan(size, stride, convention, bos), SystemClock(), told)
        except RequestError as error:
            place = {**FLAGS, "text": name}.get(error.param or "")
            if place is None:
                raise
            raise RequestError(f"{place}: {error.cause}", error.remedy, param=error.param) from error


def _lines(report: Report) -> list[str]:
    tally, plan = report.tally, report.plan
    rate = tally.count / report.seconds if report.seconds > 0 else 0.0
    each = f"of {plan.size} tokens, one each {plan.stride}, {plan.convention}{', BOS' if plan.bos else ''}"
    return table_lines(
        [
            ("perplexity", f"{tally.perplexity:.4f}" + (f" +- {tally.error:.4f}" if tally.count > 1 else "")),
            ("per token", f"{tally.mean:.6f} nats"),
            ("per byte", f"{report.bits_per_byte:.6f} bits"),
            ("counted", f"{tally.count} tokens, {report.bytes} bytes"),
            ("windows", f"{report.windows} {each}"),
            ("time", f"{report.seconds:.2f} s, {rate:.1f} counted tokens/s"),
        ],
        left=2,
    )


def _position_lines(report: Report) -> list[str]:
    """A line for each range of tokens before; errors as above."""
    rows = [("tokens before", "scored", "perplexity", "+-")]
    for least, most, tally in report.by_position:
        error = f"{tally.error:.4f}" if tally.count > 1 else UNKNOWN
        rows.append((f"{least}-{most}", str(tally.count), f"{tally.perplexity:.4f}", error))
    return table_lines(rows)
