"""`pelton quantize`: a model with quantised weights, written as a folder, and what it costs in quality. It parses and
prints; the arithmetic is quant/'s.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path

import click
from tqdm import tqdm

from pelton.checkpoint.checkpoint import HF, Checkpoint, open_checkpoint
from pelton.checkpoint.compressed.write import DenseUnit
from pelton.cli.commands.perplexity import read_text
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.loading import load
from pelton.cli.options import ENGINE_HELP, Choosing, Flags, debug_option, fetch_options
from pelton.cli.terminal import emit, say_notes, shows_progress, table_lines
from pelton.core.errors import SettingError
from pelton.core.words.sizes import size_text
from pelton.measure.agreement import Scores, agreement, score
from pelton.measure.sample_text import SAMPLE_TEXT
from pelton.models import build_module
from pelton.models.tensors import origin
from pelton.quant import method_for
from pelton.quant.load import fallbacks, matrices, plan, refuse_coded
from pelton.quant.method import Method
from pelton.quant.package import check_out, units, write_package
from pelton.quant.rounding import Rounding

SCHEME = "int8"
BUILT_IN = "a built-in text"


@click.command("quantize")
@click.argument("model", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--scheme",
    "quantization",
    cls=Choosing,
    default=SCHEME,
    help=f"How weights are quantised, such as int4:group=64; there are [{SCHEME}].",
)
@click.option("--text", "text_file", metavar="FILE", help=f"Measure perplexity on this text [{BUILT_IN}].")
@click.option("--no-perplexity", is_flag=True, help="Write the model, and measure nothing.")
@click.option("--force", is_flag=True, help="Replace the model in the folder OUT.")
@click.option("--backend", cls=Choosing, help="What computes the perplexity.")
@click.option("--threads", type=int, help=ENGINE_HELP["threads"])
@fetch_options
@debug_option
def quantize(model: str, out: Path, **flags: object) -> None:
    """Write the model IN with quantised weights into the new folder OUT, and measure what that changes.

    Weights are rounded to nearest. OUT has Hugging Face's layout, its weights in compressed-tensors (pack-quantized);
    it computes the same bits as IN with --quantization. Perplexity is measured before and after on a short text, which
    shows gross damage; for more use pelton perplexity.
    """
    method = method_for("--scheme", str(flags["quantization"]))
    text = SAMPLE_TEXT if flags["text_file"] is None else read_text(str(flags["text_file"]))
    path = fetched(model, fetch_section(flags))
    check_out(path, out, force=bool(flags["force"]))
    checkpoint = open_checkpoint(path)
    try:
        wanted, notes = _wanted(checkpoint, method)
        say_notes(notes)
        # The model's own score comes first: what is wrong with the text or a setting is told before OUT is written.
        reference = None if flags["no_perplexity"] else _scores(path, text, flags)
        before, size, elements = _write(checkpoint, wanted, out, force=bool(flags["force"]))
    finally:
        checkpoint.close()
    bits = 8 * size / elements
    lines = [("written", f"{out}: {size_text(size)} of weights, {bits:.2f} bits each; before {size_text(before)}")]
    emit("\n".join(table_lines(lines, left=2)) + "\n")
    if reference is not None:
        lines = _measured(reference, _scores(out, text, flags), flags)
        emit("\n".join(table_lines(lines, left=2)) + "\n")


def _write(checkpoint: Checkpoint, wanted: Mapping[str, Rounding], out: Path, *, force: bool) -> tuple[int, int, int]:
    """Bytes before, after, and the number of weights."""
    written = units(checkpoint, wanted)
    before = sum(part.nbytes for source in checkpoint.tensors.values() for part in DenseUnit(source).parts)
    elements = sum(prod(source.shape) for source in checkpoint.tensors.values())
    total = sum(part.nbytes for unit in written for part in unit.parts)
    with tqdm(total=total, unit="B", unit_scale=True, disable=not shows_progress(), leave=False) as bar:
        return before, write_package(checkpoint, written, out, bar.update, force=force), elements


def _wanted(checkpoint: Checkpoint, method: Method) -> tuple[dict[str, Rounding], tuple[str, ...]]:
    """What each tensor of the files becomes, by its name there, and notes; SettingError for models that cannot be."""
    module = build_module(checkpoint)
    refuse_coded(matrices(module), f"--scheme {method.label()}")
    if checkpoint.layout != HF:
        raise SettingError(
            f"{checkpoint.path} is a GGUF file, whose settings and tokenizer are not Hugging Face's.",
            "Take the model's folder; --quantization of the other commands works with the file.",
        )
    chosen = plan(module, method)
    wanted: dict[str, Rounding] = {}
    for name, rounding in chosen.items():
        wanted[origin(module.storages[name].source).name] = rounding
    if not wanted:
        raise SettingError(f"--scheme {method.label()} has no effect: no matrix has rows that can be cut so.")
    return wanted, fallbacks(module, method, chosen)


def _measured(before: Scores, after: Scores, flags: Flags) -> list[tuple[str, str]]:
    worse = after.tally.perplexity / before.tally.perplexity - 1
    figures = f"{before.tally.perplexity:.4f} before, {after.tally.perplexity:.4f} after ({worse:+.2%})"
    source = BUILT_IN if flags["text_file"] is None else str(flags["text_file"])
    return [
        ("perplexity", f"{figures}; {after.tally.count} tokens of {source}"),
        ("likeliest", f"the same token at {agreement(before, after):.2%} of the places"),
    ]


def _scores(reference: Path, text: str, flags: Flags) -> Scores:
    given: Mapping[str, object] = {name: flags[name] for name in ("backend", "threads")}
    with (
        load(str(reference), {**given, "max_num_seqs": 1, "enable_prefix_caching": False}) as llm,
        tqdm(unit="window", disable=not shows_progress(), leave=False) as bar,
    ):

        def told(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        return score(llm, text, told)
