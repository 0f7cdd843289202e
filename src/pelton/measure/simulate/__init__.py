"""Simulate: the engine's own scheduling and block code on recorded traffic, in virtual time and without weights.

It changes no rule of the engine. Invariant: the same trace, settings and rates give the same figures.
"""

from pelton.core.registry import Registry
from pelton.measure.simulate.trace import TraceReader

TRACES: Registry[type[TraceReader]] = Registry(
    "trace",
    {
        "mooncake": "pelton.measure.simulate.traces.mooncake:Mooncake",
        "azure": "pelton.measure.simulate.traces.azure:Azure",
        "servegen": "pelton.measure.simulate.traces.servegen:ServeGen",
        "csv_lengths": "pelton.measure.simulate.traces.csv_lengths:CsvLengths",
    },
)
