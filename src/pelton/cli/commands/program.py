"""`pelton program`: the ops of a model in one step, with shapes, bytes and FLOPs, and the sums. It runs no op itself:
`--measure` is another module's, which loads the engine.

Invariant: the sums printed are those of `costs.total_cost`, whether or not layers are folded.
"""

import json
from dataclasses import replace

import click

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.fold import Run, fold
from pelton.cli.lazy import attribute_at
from pelton.cli.options import (
    ENGINE_HELP,
    Choosing,
    choose_model,
    debug_option,
    fetch_options,
    model_options,
    parse_length,
)
from pelton.cli.terminal import count_text, emit, say_notes, table_lines
from pelton.core.config import ACTIVATIONS, DTYPES, resolve
from pelton.core.errors import SettingError, beyond
from pelton.core.words.sizes import size_text
from pelton.models import build_module, config_notes
from pelton.models.overrides import overridden, override_config, override_notes
from pelton.program.costs import OpCost, op_costs, total_cost
from pelton.program.module import Module
from pelton.program.op import Cost, Op
from pelton.program.passes import run_passes
from pelton.program.passes.activations import with_activations
from pelton.program.values import StepShape
from pelton.quant import method_for
from pelton.quant.load import quantised

ENTRY = "target"
MEASURED = "pelton.cli.measured_step"
KV_ELEMENT = {"auto": 2, "bfloat16": 2, "float32": 4}
LENGTH_HELP = "Positions for texts of this length, where they depend on it [auto: the model's longest]."
REPEATS = 30
HEADER = ("op", "output", "weights", "read", "written", "FLOPs", "FLOP/B")


@click.command("program")
@model_options
@click.option("--tokens", type=click.IntRange(min=1), default=1, show_default=True, help="Tokens computed in the step.")
@click.option(
    "--context", type=click.IntRange(min=0), default=0, show_default=True, help="Tokens that stand before them."
)
@click.option(
    "--sequences",
    type=click.IntRange(min=1, max=65536),
    default=1,
    show_default=True,
    help="So many sequences, with so many tokens each.",
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), default="auto", show_default=True, help="Decides the size of a cached number."
)
@click.option("--measure", is_flag=True, help="Load the weights, run the step, and show how long each op takes.")
@click.option(
    "--repeat", type=click.IntRange(min=1), help=f"Steps that are measured; the medians are shown [{REPEATS}]."
)
@click.option("--threads", type=int, help=ENGINE_HELP["threads"])
@click.option("--unfused", is_flag=True, help="The ops before they are joined.")
@click.option("--all", "show_all", is_flag=True, help="Every op, also of layers that repeat.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object; sizes in bytes.")
@click.option("--hf-overrides", metavar="JSON", help=ENGINE_HELP["hf_overrides"])
@click.option("--quantization", cls=Choosing, help=ENGINE_HELP["quantization"])
@click.option("--activations", type=click.Choice(ACTIVATIONS), default="auto", help=ENGINE_HELP["activations"])
@click.option("--max-model-len", type=parse_length, metavar="INTEGER", help=LENGTH_HELP)
@fetch_options
@debug_option
def program(model: str | None, model_flag: str | None, dtype: str, **flags: object) -> None:
    """Show what MODEL computes in one step, op by op, and what it costs.

    Bytes are those the op must move: its weights at the file's precision, its inputs and outputs, the cached keys and
    values it reads. A multiply-add is 2 FLOPs.
    """
    for name, flag in (("repeat", "--repeat"), ("threads", "--threads")):
        if flags[name] is not None and not flags["measure"]:
            raise click.UsageError(f"{flag} is for --measure.")
    if flags["measure"] and flags["unfused"]:
        raise click.UsageError("--unfused ops are not what runs: leave it or --measure out.")
    path = fetched(choose_model(model, model_flag), fetch_section(flags))
    checkpoint = open_checkpoint(path)
    overrides = None if flags["hf_overrides"] is None else str(flags["hf_overrides"])
    length = _length(flags["max_model_len"])
    try:
        checkpoint = replace(checkpoint, config=override_config(checkpoint.config, overrides))
        with overridden(overrides):
            module = build_module(checkpoint, length)
        notes: tuple[str, ...] = ()
        if flags["quantization"] is not None:
            module, notes = quantised(module, method_for("quantization", str(flags["quantization"])))
        say_notes((*override_notes(overrides), *config_notes(checkpoint.config), *checkpoint.notes, *notes))
    finally:
        checkpoint.close()
    if length is not None and length > module.context:
        raise beyond(length, module.context)
    if not flags["unfused"]:
        module = run_passes(module)
    module, lossy = with_activations(module, str(flags["activations"]))
    say_notes(lossy)
    tokens, context, sequences = (int(str(flags[name])) for name in ("tokens", "context", "sequences"))
    step = _step(tokens, context, sequences, length or module.context)
    element = KV_ELEMENT[dtype]
    if flags["measure"]:
        _measure(module, step, {**flags, "model": path, "dtype": dtype, "max_model_len": length})
        return
    if flags["as_json"]:
        emit(json.dumps(describe(module, step, element), indent=1) + "\n")
        return
    lines = op_lines(module, step, element, fold_layers=not flags["show_all"])
    emit("\n".join([*lines, "", *sum_lines(module, step, element)]) + "\n")


def _length(asked: object) -> int | None:
    """The length that is asked for, None for the model's own; SettingError for what none can be."""
    settings = {} if asked is None else {"max_model_len": asked}
    return resolve("", settings).model.max_model_len


def _measure(module: Module, step: StepShape, flags: dict[str, object]) -> None:
    exact = flags["dtype"] == "float32"
    costs = list(op_costs(module, step, entry=ENTRY, exact=exact))
    columns = [(item.op.kind, _shapes(module, item.op), _weights(module, item.op)) for item in costs]
    described = attribute_at(f"{MEASURED}:Described")(module, costs, columns, describe(module, step, 4 if exact else 2))
    context, tokens = step.contexts[0]
    names = ("model", "dtype", "hf_overrides", "quantization", "activations", "max_model_len", "threads")
    attribute_at(f"{MEASURED}:show")(
        described,
        attribute_at(f"{MEASURED}:Shape")(tokens, context, len(step.contexts)),
        {name: flags[name] for name in names},
        int(str(flags["repeat"] or REPEATS)),
        fold_layers=not flags["show_all"],
        as_json=bool(flags["as_json"]),
    )


def _step(tokens: int, context: int, sequences: int, most: int) -> StepShape:
    if tokens + context > most:
        raise SettingError(
            f"--tokens {tokens} and --context {context} are {tokens + context} tokens together.",
            f"There may be {most}: ask for at most that many.",
        )
    return StepShape(((context, tokens),) * sequences, sequences)


def describe(module: Module, step: StepShape, element: int) -> dict[str, object]:
    """Ops and sums as JSON values; sizes in bytes."""
    return {
        "entry": ENTRY,
        "tokens": step.tokens,
        "context": step.contexts[0][0],
        "sequences": len(step.contexts),
        "ops": [_op_record(module, item) for item in op_costs(module, step, entry=ENTRY, exact=element == 4)],
        "total": _cost_record(total_cost(module, step, entry=ENTRY, exact=element == 4)),
        "weight_bytes": module.weight_bytes,
        "kv_bytes_per_token": module.kv_token_bytes(element),
        "vocab": module.vocab,
        "max_context": module.context,
    }


def _op_record(module: Module, item: OpCost) -> dict[str, object]:
    op, values = item.op, module.entries[ENTRY].values
    return {
        "kind": op.kind,
        "inputs": list(op.inputs),
        "outputs": {name: list(values[name].shape) for name in op.outputs},
        "weights": {
            view: {"rows": storage.rows, "cols": storage.cols, "format": storage.format}
            for view in op.weights
            for storage in [module.storages[module.weights[view].storage]]
        },
        "state": op.state,
        "attrs": dict(op.attrs),
        **_cost_record(item.cost),
    }


def _cost_record(cost: Cost) -> dict[str, object]:
    return {"flops": cost.flops, "read": cost.read, "written": cost.written}


def op_lines(module: Module, step: StepShape, element: int, *, fold_layers: bool) -> list[str]:
    """The table; runs of equal layers are shown once, with their number, if `fold_layers`."""
    rows = [_row(module, item) for item in op_costs(module, step, entry=ENTRY, exact=element == 4)]
    runs = fold(rows) if fold_layers else [Run(0, len(rows), 1)]
    shown: list[tuple[str, ...]] = [HEADER]
    titles: dict[int, str] = {}
    for run in runs:
        if run.times > 1:
            titles[len(shown)] = f"-- {run.times} times these {run.length} ops:"
            titles[len(shown) + run.length] = "--"
        shown += rows[run.start : run.start + run.length]
    lines = table_lines(shown, left=3)
    return [text for place, line in enumerate([*lines, ""]) for text in (titles.get(place), line) if text]


def _row(module: Module, item: OpCost) -> tuple[str, ...]:
    op, cost = item.op, item.cost
    moved = cost.read + cost.written
    intensity = f"{cost.flops / moved:.2f}" if moved else "-"
    sizes = (size_text(cost.read), size_text(cost.written), count_text(cost.flops))
    return (op.kind, _shapes(module, op), _weights(module, op), *sizes, intensity)


def _shapes(module: Module, op: Op) -> str:
    values = module.entries[ENTRY].values
    return " ".join("[" + ",".join(map(str, values[name].shape)) + "]" for name in op.outputs) or "-"


def _weights(module: Module, op: Op) -> str:
    """The matrices, as rows x columns and format; vectors (norms, biases) are not worth a column."""
    storages = [module.storages[module.weights[view].storage] for view in op.weights]
    matrices = [storage for storage in storages if storage.rows > 1]
    inputs = f" x {op.text('activations')}" if op.text("activations") else ""
    return " ".join(f"{storage.rows}x{storage.cols}:{storage.format}" for storage in matrices) + inputs or "-"


def _step_text(step: StepShape) -> str:
    (start, tokens), count = step.contexts[0], len(step.contexts)
    if count == 1:
        return f"T = {tokens} tokens after {start}, R = 1 row of logits"
    return f"T = {count} x {tokens} tokens, each after {start}, R = {count} rows of logits"


def sum_lines(module: Module, step: StepShape, element: int) -> list[str]:
    """The sums of the step and the sizes of the model."""
    total = total_cost(module, step, entry=ENTRY, exact=element == 4)
    moved = total.read + total.written
    start, tokens = step.contexts[0]
    kv, after = module.kv_token_bytes(element), len(step.contexts) * (start + tokens)
    return table_lines(
        [
            ("step", _step_text(step)),
            ("ops", str(len(module.entries[ENTRY].ops))),
            ("read", f"{size_text(total.read)} ({total.read} bytes)"),
            ("written", f"{size_text(total.written)} ({total.written} bytes)"),
            ("FLOPs", f"{count_text(total.flops)} ({total.flops})"),
            ("intensity", f"{total.flops / moved:.2f} FLOPs per byte"),
            ("weights", f"{size_text(module.weight_bytes)} at the file's precision"),
            ("KV", f"{size_text(kv)} per token, {size_text(kv * after)} after this step"),
            ("model", f"{module.vocab} tokens in the vocabulary, context of {module.context}"),
        ],
        left=2,
    )
