"""`pelton probe`: what this machine can do at most, as a table or as JSON. What measures is in backends/cpu/probe.

Invariant: figures shown are always told with the date at which they were measured.
"""

from collections.abc import Iterator

import click
from tqdm import tqdm

from pelton.backends.cpu.machine import allowed_cores
from pelton.backends.cpu.probe.cached import encode, load, save
from pelton.backends.cpu.probe.figures import FLOAT, INT8, PARTS, PIECES, MachineProbe, Spread
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.limits import expansion_rate, largest, matrix_rate, read_rate
from pelton.backends.cpu.probe.measure import FULL, QUICK, Effort, measure
from pelton.cli.options import debug_option
from pelton.cli.terminal import emit, say, say_notes, shows_progress, table_lines
from pelton.core.words.sizes import size_text

GIGA, TERA = 1e9, 1e12
THREADS_A_CORE = 4  # more of them would measure how they wait for each other, for a very long time
# What the lines of explanation speak of: a small model's weights in four bits, and its parameters.
EXAMPLE_BYTES, EXAMPLE_FORMAT, EXAMPLE_PARAMETERS = 97_000_000, "q4m", 135_000_000
BUSY = (
    "the machine was busy before (load {:.2f} on {}), so these figures may be too low, and whatever is compared with "
    "them looks too good. When nothing else runs: pelton probe --force"
)
Rows = list[tuple[str, ...]]


@click.command("probe")
@click.option("--quick", is_flag=True, help="Fewer sizes and shorter: about three seconds instead of fifteen.")
@click.option("--force", is_flag=True, help="Measure again, even if there are figures of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object; rates per second.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="Worker threads [as many as may run at once].")
@debug_option
def probe(quick: bool, force: bool, as_json: bool, threads: int) -> None:
    """Measure how fast this machine reads, computes and unpacks weights: the limits that every speed is compared with.

    Figures are kept in the cache folder, for this machine and this build alone. Measured while other programs run,
    they are too low: close those first.
    """
    _expect_cores_for(threads)
    identity = identify(threads)
    kept = None if force else load(identity)
    if kept is not None and kept.quick and not quick:
        say(f"there are quick figures of {kept.date}; measuring in full", dim=True)
        kept = None
    if kept is None:
        if not shows_progress():
            say(f"measuring the machine, about {'three' if quick else 'fifteen'} seconds ...", dim=True)
        figures = measured(QUICK if quick else FULL, threads)
        path = save(figures)
        say(f"kept in {path}" if path else "note: the cache folder cannot be written, so nothing is kept", dim=True)
    else:
        figures = kept
        say(f"these figures were measured {kept.date}; --force measures again", dim=True)
    if figures.busy:
        say_notes([BUSY.format(figures.load_before, _count(figures.identity.cores, "core"))])
    emit(encode(figures).decode() if as_json else "\n".join(lines(figures)) + "\n")


def _expect_cores_for(threads: int) -> None:
    cores = len(allowed_cores())
    if threads > THREADS_A_CORE * cores:
        raise click.UsageError(
            f"--threads {threads}: this process may run on {_count(cores, 'core')}; more than {THREADS_A_CORE * cores} "
            "threads would measure how they wait for each other. Leave it out, or take fewer."
        )


def measured(effort: Effort, threads: int = 0) -> MachineProbe:
    """Measures now, with a bar on a watched stderr."""
    with tqdm(total=1, unit="figure", leave=False, disable=not shows_progress()) as bar:

        def show(done: int, total: int, what: str) -> None:
            bar.total = total
            bar.set_description(what, refresh=False)
            bar.update(done - bar.n)
            bar.refresh()

        return measure(effort, show, threads=threads)


def lines(figures: MachineProbe) -> list[str]:
    """The table for people; behind each title what the figures limit."""
    shown: list[str] = []
    for title, why, rows in _sections(figures):
        shown += [f"{title}: {why}", *(f"  {line}" for line in table_lines(rows)), ""]
    return [*_head(figures), "", *shown[:-1]]


def _head(figures: MachineProbe) -> list[str]:
    who = figures.identity
    kind = "quick" if figures.quick else "full"
    cores, threads = _count(who.cores, "core"), _count(who.threads, "thread")
    load = f"{figures.load_before:.2f}{', busy' * figures.busy}"
    return table_lines(
        [
            ("machine", f"{who.cpu}, {cores} allowed, {threads}, kernels {who.isa}"),
            ("measured", f"{figures.date}, {kind}, in {figures.seconds:.1f} s, load before {load}"),
        ],
        left=2,
    )


def _sections(figures: MachineProbe) -> Iterator[tuple[str, str, Rows]]:
    """(title, what it limits, table) of each."""
    most = largest(figures)
    tokens = read_rate(figures, EXAMPLE_BYTES) / EXAMPLE_BYTES
    size = f"{EXAMPLE_BYTES / 1e6:.0f} MB"
    yield (
        "reading, GB/s",
        f"decoding reads all weights for each token; {size} of them: {_per_s(tokens)}",
        _reads(figures),
    )
    moved = Spread.of([one.bytes_per_s.median for one in figures.copies])
    yield "copying, GB/s", "moving cached keys and values", [(size_text(most.working_set_bytes), _giga(moved.median))]
    prompt = matrix_rate(figures) / (2 * EXAMPLE_PARAMETERS)
    why = f"computing prompts; {EXAMPLE_PARAMETERS // 10**6} M parameters: {_per_s(prompt)}, attention left out"
    yield f"products by rows, GFLOP/s, {_count(figures.identity.threads, 'thread')}", why, _products(figures)
    unpacking = expansion_rate(figures, EXAMPLE_FORMAT)
    why = "decoding, where memory is faster than that"
    if unpacking is not None:
        why += f"; {size} of {EXAMPLE_FORMAT}: {_per_s(unpacking / EXAMPLE_BYTES)}"
    yield "unpacking weights for one row, GB/s", why, _expansions(figures)
    if figures.peaks:
        yield "arithmetic without memory, TOP/s", "no kernel of this instruction is faster", _peaks(figures)
    yield "disk of the cache folder, MB/s", _disk_words(figures), _disk(figures)


def _per_s(tokens: float) -> str:
    return f"at most {tokens:,.0f} tokens/s"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _giga(rate: float) -> str:
    return f"{rate / GIGA:.1f}"


def _reads(figures: MachineProbe) -> Rows:
    counts = sorted({rate.threads for rate in figures.reads})
    most = figures.identity.threads
    columns = [(threads, PARTS) for threads in counts]
    columns += [(most, PIECES)] if most > 1 else []
    found = {(rate.threads, rate.handing, rate.working_set_bytes): rate.bytes_per_s.median for rate in figures.reads}
    heads = [_count(threads, "thread") + ", pieces" * (way == PIECES) for threads, way in columns]
    rows: Rows = [("working set", *heads)]
    for size in sorted({rate.working_set_bytes for rate in figures.reads}):
        cells = [found.get((threads, way, size)) for threads, way in columns]
        rows.append((size_text(size), *("-" if cell is None else _giga(cell) for cell in cells)))
    return rows


def _products(figures: MachineProbe) -> Rows:
    names = dict.fromkeys((rate.isa, rate.format, rate.inputs) for rate in figures.products)
    counts = sorted({rate.rows for rate in figures.products})
    found = {(rate.isa, rate.format, rate.inputs, rate.rows): rate.flops_per_s.median for rate in figures.products}
    rows: Rows = [("kernels", *map(str, counts))]
    for isa, name, inputs in names:
        cells = [found.get((isa, name, inputs, count)) for count in counts]
        if None not in cells:  # others were measured with one number of rows, and stand with the unpacking
            label = f"{isa} {name}" + (", rows of 8 bits" if inputs == INT8 else "")
            rows.append((label, *(f"{cell / GIGA:.0f}" for cell in cells if cell is not None)))
    return rows


def _expansions(figures: MachineProbe) -> Rows:
    counts = sorted({rate.threads for rate in figures.expansions})
    found = {(rate.format, rate.threads): rate for rate in figures.expansions}
    heads = [_count(threads, "thread") for threads in counts]
    most = max(rate.rows for rate in figures.products)
    mine = (figures.identity.isa, FLOAT, most)
    many = {r.format: r.flops_per_s.median for r in figures.products if (r.isa, r.inputs, r.rows) == mine}
    rows: Rows = [("format", *heads, "weights, G/s", f"{most} rows, GFLOP/s")]
    for name in dict.fromkeys(rate.format for rate in figures.expansions):
        rates = [found[name, threads] for threads in counts]
        cells = [_giga(rate.weight_bytes_per_s.median) for rate in rates]
        flops = f"{many[name] / GIGA:.0f}" if name in many else "-"
        rows.append((name, *cells, f"{rates[-1].weights_per_s / GIGA:.0f}", flops))
    return rows


def _peaks(figures: MachineProbe) -> Rows:
    counts = sorted({rate.threads for rate in figures.peaks})
    found = {(rate.name, rate.threads): rate.operations_per_s.median for rate in figures.peaks}
    rows: Rows = [("instruction", *(_count(threads, "thread") for threads in counts))]
    for name in dict.fromkeys(rate.name for rate in figures.peaks):
        rows.append((name, *(f"{found[name, threads] / TERA:.2f}" for threads in counts)))
    return rows


def _disk_words(figures: MachineProbe) -> str:
    rate = figures.disk.read_bytes_per_s
    if rate is None:
        return figures.disk.note
    first = f"the first start of a model reads its file; {EXAMPLE_BYTES / 1e6:.0f} MB: {EXAMPLE_BYTES / rate:.2f} s"
    return f"{first} ({figures.disk.note})" if figures.disk.note else first


def _disk(figures: MachineProbe) -> Rows:
    pairs = (("written", figures.disk.write_bytes_per_s), ("read", figures.disk.read_bytes_per_s))
    return [(name, "-" if rate is None else f"{rate / 1e6:.0f}") for name, rate in pairs]
