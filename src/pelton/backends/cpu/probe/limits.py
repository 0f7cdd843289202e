"""What probed figures say of a size, a format, a model: rates looked up and put between. It measures nothing."""

import math
from collections.abc import Sequence

from pelton.backends.cpu.probe.figures import FLOAT, MachineProbe, ReadRate


def read_rate(probe: MachineProbe, working_set_bytes: int, threads: int | None = None) -> float:
    """Bytes per second of a working set: between the two sizes around it, the better way of handing out.

    `threads` None: all. Of a number that was not measured the next smaller one's.
    """
    wanted = probe.identity.threads if threads is None else threads
    count = max((rate.threads for rate in probe.reads if rate.threads <= wanted), default=1)
    best: dict[int, float] = {}
    for rate in probe.reads:
        if rate.threads == count:
            size = rate.working_set_bytes
            best[size] = max(best.get(size, 0.0), rate.bytes_per_s.median)
    return _between(sorted(best.items()), working_set_bytes)


def _between(points: Sequence[tuple[int, float]], size: int) -> float:
    """By the logarithm of the size; beyond the ends, what is there."""
    if size <= points[0][0]:
        return points[0][1]
    for (low, slow), (high, fast) in zip(points, points[1:], strict=False):
        if size <= high:
            part = math.log(size / low) / math.log(high / low)
            return slow + (fast - slow) * part
    return points[-1][1]


def expansion_rate(probe: MachineProbe, name: str, threads: int | None = None) -> float | None:
    """Bytes of packed weights per second; None for a format or number of threads that was not measured."""
    wanted = probe.identity.threads if threads is None else threads
    for rate in probe.expansions:
        if rate.format == name and rate.threads == wanted:
            return rate.weight_bytes_per_s.median
    return None


def matrix_rate(probe: MachineProbe, inputs: str = FLOAT) -> float:
    """FLOPs per second that the kernels in use reach at their best number of rows, weights in the cache.

    `inputs`: FLOAT or INT8; rows of 8 bits are another arithmetic with a rate of its own.
    """
    mine = [rate for rate in probe.products if rate.isa == probe.identity.isa and rate.inputs == inputs]
    return max(rate.flops_per_s.median for rate in mine)


def largest(probe: MachineProbe) -> ReadRate:
    """The largest working set of all threads, by the better way of handing out: what memory itself gives."""
    return max(
        (rate for rate in probe.reads if rate.threads == probe.identity.threads),
        key=lambda rate: (rate.working_set_bytes, rate.bytes_per_s.median),
    )
