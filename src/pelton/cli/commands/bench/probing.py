"""The machine's probe for the bench commands: kept figures, or quick ones measured now; and what a result says of them.

Invariant: a bench never fails for want of a probe.
"""

from dataclasses import replace
from urllib.parse import urlsplit

import click

from pelton.backends.cpu.probe.cached import load, save
from pelton.backends.cpu.probe.figures import BUSY_MARK, MachineProbe
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.measure import QUICK, measure
from pelton.cli.options import Flags
from pelton.cli.terminal import say, say_notes
from pelton.core.errors import PeltonError
from pelton.measure.bench.client import UNIX

LOCAL = ("localhost", "127.0.0.1", "::1")
PROBE_OPTION = click.option(
    "--probe/--no-probe",
    "probe",
    default=True,
    show_default=True,
    help="Quote the machine's limits (pelton probe) in the result; measured quickly if there are none.",
)


def machine_probe(flags: Flags, threads: int = 0, load_before: object = None) -> MachineProbe | None:
    """Figures of this machine; None with --no-probe, and where they cannot be had, which is said.

    Figures that were measured while others were at work are not trusted: these are measured anew. `load_before`: the
    system's load before the bench, whose own work would be in it by now.
    """
    if not flags["probe"]:
        return None
    try:
        identity = identify(threads)
        kept = load(identity)
        if kept is not None and not kept.busy:
            return kept
        again = "" if kept is None else "; the kept figures are of a busy one"
        say(f"measuring the machine once, a few seconds{again}; --no-probe leaves it out ...", dim=True)
        figures = measure(QUICK, threads=threads)
    except PeltonError as error:
        say_notes([f"the machine's limits are left out: {error}"])
        return None
    if isinstance(load_before, float):
        figures = replace(figures, load_before=load_before)
    if kept is None or not figures.busy:
        save(figures)
    return figures


def is_local(server: str) -> bool:
    """Whether a server's URL says that it runs on this machine."""
    return server.startswith(UNIX) or (urlsplit(server).hostname or "") in LOCAL


def say_share(part: object) -> None:
    """The line about the limits of one request's decoding, for people. They are measured in turns with it, not kept."""
    if not isinstance(part, dict):
        return
    share = part["share_of_limit"]["median"]
    unpacking = "" if part["expansion_ms"] is None else f", {part['expansion_ms']:.2f} ms of unpacking"
    click.echo(
        f"Decoding one request: {part['step_ms']:.2f} ms a step, {share:.0%} of the limit ({part['limit']}): "
        f"{part['step_bytes'] / 1e6:.1f} MB are {part['read_ms']:.2f} ms of reading{unpacking}"
    )


def say_run(part: object) -> None:
    """The line about the limits of a whole run, for people."""
    if not isinstance(part, dict):
        return
    click.echo(
        f"Of the machine's limits, prompts included: {part['share_of_read_limit']:.0%} of reading, "
        f"{part['share_of_matrix_limit']:.0%} of products{_mark(part)}"
    )


def say_served(part: object) -> None:
    """The line about the limits of a server, for people."""
    if isinstance(part, dict) and part["share_of_read_limit"] is not None:
        click.echo(
            f"Reading the weights once ({part['weight_bytes'] / 1e6:.1f} MB): {part['weights_read_ms']:.2f} ms, "
            f"{part['share_of_read_limit']:.0%} of the median TPOT{_mark(part)}"
        )


def _mark(part: dict[str, object]) -> str:
    return BUSY_MARK if part["busy"] else ""
