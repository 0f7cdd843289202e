"""Whether figures that were kept can be those of a machine: a file may have been changed by hand or by a bad disk.

Invariant: of figures that are sound, everything that is looked up is there, and every rate can be divided by.
"""

import math
from collections.abc import Collection, Iterable
from itertools import product

from pelton.backends.cpu.probe.figures import (
    FLOAT,
    INT8,
    PARTS,
    PIECES,
    CopyRate,
    DiskRate,
    ExpansionRate,
    MachineProbe,
    PeakRate,
    ProductRate,
    ReadRate,
    Spread,
)


def sound(probe: MachineProbe) -> bool:
    """Whether all figures are numbers that can be, and none that is looked up by somebody is missing."""
    return _complete(probe) and _possible(probe)


def _complete(probe: MachineProbe) -> bool:
    who = probe.identity
    reading = {rate.threads for rate in probe.reads}
    inputs = {rate.inputs for rate in probe.products if rate.isa == who.isa}
    return (
        {1, who.threads} <= reading
        and bool(probe.copies)
        and FLOAT in inputs
        and _all_pairs([(rate.format, rate.threads) for rate in probe.expansions])
        and _all_pairs([(rate.name, rate.threads) for rate in probe.peaks])
    )


def _all_pairs(found: Collection[tuple[str, int]]) -> bool:
    """Whether each name was measured with each number of threads."""
    names, counts = {name for name, _ in found}, {count for _, count in found}
    return set(product(names, counts)) <= set(found)


def _possible(probe: MachineProbe) -> bool:
    moved: list[ReadRate | CopyRate] = [*probe.reads, *probe.copies]
    rates: list[ReadRate | CopyRate | ProductRate | ExpansionRate | PeakRate]
    rates = [*moved, *probe.products, *probe.expansions, *probe.peaks]
    spreads = [
        *(rate.bytes_per_s for rate in moved),
        *(rate.flops_per_s for rate in probe.products),
        *(rate.weight_bytes_per_s for rate in probe.expansions),
        *(rate.operations_per_s for rate in probe.peaks),
    ]
    return (
        all(rate.threads > 0 for rate in rates)
        and all(rate.working_set_bytes > 0 for rate in moved)
        and all(rate.rows > 0 for rate in probe.products)
        and all(rate.handing in (PARTS, PIECES) for rate in probe.reads)
        and all(rate.inputs in (FLOAT, INT8) for rate in probe.products)
        and all(map(_spread, spreads))
        and _numbers(rate.weights_per_s for rate in probe.expansions)
        and all(math.isfinite(number) and number >= 0 for number in (probe.seconds, probe.load_before))
        and _disk(probe.disk)
    )


def _spread(spread: Spread) -> bool:
    ordered = spread.lowest <= spread.median <= spread.highest
    return spread.samples > 0 and ordered and _numbers((spread.lowest, spread.highest))


def _disk(disk: DiskRate) -> bool:
    rates = (disk.write_bytes_per_s, disk.read_bytes_per_s)
    return disk.file_bytes >= 0 and _numbers(rate for rate in rates if rate is not None)


def _numbers(rates: Iterable[float]) -> bool:
    return all(math.isfinite(rate) and rate > 0 for rate in rates)
