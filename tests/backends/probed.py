"""Figures of a machine that is none, for tests of what is made of them. Nothing is measured here."""

import json
from dataclasses import replace

from pelton.backends.cpu.probe import cached
from pelton.backends.cpu.probe.figures import (
    FLOAT,
    PARTS,
    PIECES,
    CopyRate,
    DiskRate,
    ExpansionRate,
    Identity,
    MachineProbe,
    PeakRate,
    ProductRate,
    ReadRate,
    Spread,
)

MIB, GIGA = 1 << 20, 1e9
ELSEWHERE = Identity("A Processor", 4, 4, "avx2", 16.0, "abc", "def")


def spread(value: float) -> Spread:
    return Spread(value, value * 0.9, value * 1.1, 5)


def canned(identity: Identity = ELSEWHERE, *, quick: bool = False) -> MachineProbe:
    """Round rates: reading 100 GB/s of 1 MiB, 40 of 64 MiB, 20 of 256 MiB; half of that with one thread."""
    sizes = ((MIB, 100.0), (64 * MIB, 40.0), (256 * MIB, 20.0))
    reads = [
        ReadRate(
            threads, size, way, spread(rate * GIGA * (0.5 if threads == 1 else 1.0) * (0.8 if way == PARTS else 1))
        )
        for threads in (1, identity.threads)
        for size, rate in sizes
        for way in (PARTS, PIECES)
    ]
    return MachineProbe(
        identity=identity,
        date="2026-01-31 12:00 UTC",
        quick=quick,
        seconds=12.5,
        load_before=0.25,
        reads=tuple(reads),
        copies=(CopyRate(identity.threads, 256 * MIB, spread(10 * GIGA)),),
        products=tuple(
            ProductRate(identity.isa, "bf16", FLOAT, rows, identity.threads, spread(rows * 10 * GIGA))
            for rows in (1, 8, 64)
        ),
        expansions=tuple(
            ExpansionRate(identity.isa, name, threads, spread(rate * threads * GIGA), rate * threads * GIGA)
            for name, rate in (("q8", 12.0), ("q4m", 4.0))
            for threads in (1, identity.threads)
        ),
        peaks=(PeakRate("avx2 fp32 fma", identity.threads, spread(1e12)),),
        disk=DiskRate(64 * MIB, 0.5 * GIGA, 2 * GIGA),
    )


def without_disk(probe: MachineProbe) -> MachineProbe:
    return replace(probe, disk=DiskRate(0, None, None, "too little room in the cache folder"))


def changed(place: str, value: object) -> bytes:
    """A kept file with something else at a place such as reads.0.threads; None: without what is there."""
    table = json.loads(cached.encode(canned()))
    *names, last = [int(name) if name.isdigit() else name for name in f"probe.{place}".split(".")]
    inner = table
    for name in names:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(table).encode()
