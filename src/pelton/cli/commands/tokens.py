"""`pelton tokens`: what the user's own text costs with different models, side by side. It runs no model.

Invariant: figures that are not known are a dash, and a note says why.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.fetch.sources import DEFAULT_MODEL, HubModel, find_source, local_path
from pelton.checkpoint.tokenizer_files import open_tokenizer_files
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.options import debug_option, fetch_options
from pelton.cli.terminal import count_text, emit, need_stdin, say_notes, table_lines
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError, RequestError, UnsupportedModelError
from pelton.core.words.sizes import size_text
from pelton.measure.tokens import Subject, Text, TokenCosts, count, relative, together
from pelton.models import build_module
from pelton.program.passes import run_passes
from pelton.tokenize.tokenizer import build_tokenizer

STDIN = "-"
ALL = "all texts"
HEADER = ("model", "tokens", "per 1000 characters", "prefill FLOPs", "KV", "price")
UNKNOWN = "-"
TOKENIZER_FILES = (".json", ".xz")


@click.command("tokens")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--model",
    "-m",
    "models",
    multiple=True,
    help="A model as for other commands, a folder with tokenizer.json, or such a file, packed (.xz) or not; may be "
    f"given several times [{DEFAULT_MODEL}].",
)
@click.option(
    "--price-input",
    "prices",
    multiple=True,
    metavar="[MODEL=]PRICE",
    help="Price of a million prompt tokens, of all models or of one; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object; sizes in bytes.")
@fetch_options
@debug_option
def tokens(files: tuple[str, ...], models: tuple[str, ...], prices: tuple[str, ...], **flags: object) -> None:
    """Count the tokens of FILE (-: standard input) with several tokenizers, and tell what they mean.

    Beside tokens per 1000 characters: the arithmetic of computing the text as a prompt, the memory of its keys and
    values, and its price; in brackets each over that of the first model. Weights are not loaded, and of a model of the
    Hub that is not here only the tokenizer is fetched; what then is not known is a dash.
    """
    names = models or (DEFAULT_MODEL,)
    costs = _prices(prices, names)
    texts = [_read(file) for file in files]
    fetch = fetch_section(flags)
    subjects = [replace(_subject(name, fetch), price=costs.get(name)) for name in names]
    table = [[count(subject, text) for subject in subjects] for text in texts]
    say_notes(subject.note for subject in subjects if subject.note)
    say_notes(_cuts(table, subjects))
    sums = [together(rows) for rows in zip(*table, strict=True)]
    if flags["as_json"]:
        listed = [_record(text, rows) for text, rows in zip(texts, table, strict=True)]
        emit(json.dumps({"texts": listed, "total": _rows(sums)}, ensure_ascii=False, indent=1) + "\n")
        return
    shown = list(zip(texts, table, strict=True))
    if len(texts) > 1:
        shown.append((Text(ALL, "".join(text.content for text in texts)), sums))
    emit("\n\n".join("\n".join(_lines(text, rows)) for text, rows in shown) + "\n")


def _prices(given: Sequence[str], models: Sequence[str]) -> dict[str, float]:
    """Model -> price; a usage error for what is none, and for models that are not compared."""
    found: dict[str, float] = {}
    for text in given:
        model, equals, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not 0 <= price < float("inf"):
            raise click.UsageError(f"--price-input {text} is no price. Write a number, or MODEL=NUMBER.")
        if equals and model not in models:
            raise click.UsageError(f"--price-input {text}: {model!r} is none of the models: {', '.join(models)}.")
        targets = [model] if equals else [name for name in models if name not in found]
        found.update(dict.fromkeys(targets, price))
    return found


def _read(file: str) -> Text:
    """The text of a file, to the last newline; RequestError if it is no UTF-8."""
    name = "standard input" if file == STDIN else file
    try:
        raw = need_stdin().read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        return Text(name, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text (byte {error.start}).", "Convert it to UTF-8.") from None


def _subject(name: str, fetch: FetchSection) -> Subject:
    """The model by its name: all of it where it is here, or else its tokenizer."""
    path = _path(name, fetch)
    if path.suffix in TOKENIZER_FILES or (path.is_dir() and not any(path.glob("*.safetensors"))):
        note = (
            "" if local_path(name) else f"{name} is not here as a whole; pelton pull {name} fetches it, for its costs."
        )
        return _counting(name, path, note)
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        return _counting(name, path, f"The costs of {name} are not known: {error.cause}")
    try:
        tokenizer = build_tokenizer(checkpoint)
        try:
            return Subject(name, tokenizer, run_passes(build_module(checkpoint)))
        except UnsupportedModelError as error:
            return Subject(name, tokenizer, note=f"The costs of {name} are not known: {error.cause}")
    finally:
        checkpoint.close()


def _path(name: str, fetch: FetchSection) -> Path:
    """Where the model lies; of one of the Hub that is not here, settings and tokenizer alone are fetched."""
    if local_path(name) is None and isinstance(find_source(name), HubModel):
        try:
            return fetched(name, replace(fetch, offline=True))
        except CheckpointError:
            return fetched(name, fetch, weights=False)
    return fetched(name, fetch)


def _counting(name: str, path: Path, note: str) -> Subject:
    files = open_tokenizer_files(path)
    try:
        return Subject(name, build_tokenizer(files), note=note)
    finally:
        files.close()


def _cuts(table: Sequence[Sequence[TokenCosts]], subjects: Sequence[Subject]) -> list[str]:
    """Notes about texts that are longer than a model's context."""
    return [
        f"A text is longer than the context of {subject.name}, {subject.module.context} tokens: its costs are those of "
        "several prompts."
        for place, subject in enumerate(subjects)
        if subject.module is not None and any(rows[place].pieces > 1 for rows in table)
    ]


def _lines(text: Text, rows: Sequence[TokenCosts]) -> list[str]:
    size = len(text.content.encode("utf-8", "surrogatepass"))
    priced = any(row.price is not None for row in rows)
    shown = [HEADER, *(_cells(row, rows[0]) for row in rows)]
    cells = shown if priced else [row[:-1] for row in shown]
    return [f"{text.name}: {len(text.content)} characters, {size} bytes", *table_lines(cells)]


def _cells(row: TokenCosts, first: TokenCosts) -> tuple[str, ...]:
    over = relative(row, first)

    def told(name: str, text: str | None) -> str:
        ratio = over[name]
        if text is None:
            return UNKNOWN
        return text if row is first or ratio is None else f"{text} ({ratio:.2f}x)"

    return (
        row.model,
        told("tokens", str(row.tokens)),
        f"{row.per_1000:.1f}",
        told("prefill_flops", None if row.prefill_flops is None else count_text(row.prefill_flops)),
        told("kv_bytes", None if row.kv_bytes is None else size_text(row.kv_bytes)),
        told("price", None if row.price is None else f"{row.price:.6g}"),
    )


def _record(text: Text, rows: Sequence[TokenCosts]) -> dict[str, object]:
    size = len(text.content.encode("utf-8", "surrogatepass"))
    return {"text": text.name, "characters": len(text.content), "bytes": size, "models": _rows(rows)}


def _rows(rows: Sequence[TokenCosts]) -> list[dict[str, object]]:
    return [
        {**asdict(row), "tokens_per_1000_characters": row.per_1000, "relative": dict(relative(row, rows[0]))}
        for row in rows
    ]
