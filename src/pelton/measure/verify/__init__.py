"""Verify: the same answers to the bit, however the engine arrives at them, on a user's own model.

A switch that claims to be lossless registers a dimension here: one file in `dimensions/` and one line below.
"""

from pelton.core.registry import Registry
from pelton.measure.verify.dimension import Dimension

DIMENSIONS: Registry[type[Dimension]] = Registry(
    "dimension",
    {
        "batch_mates": "pelton.measure.verify.dimensions.batch_mates:BatchMates",
        "chunk_sizes": "pelton.measure.verify.dimensions.chunk_sizes:ChunkSizes",
        "prefix_reuse": "pelton.measure.verify.dimensions.prefix_reuse:PrefixReuse",
        "preemption": "pelton.measure.verify.dimensions.preemption:Preemption",
        "fork_count": "pelton.measure.verify.dimensions.fork_count:ForkCount",
        "decode_calls": "pelton.measure.verify.dimensions.decode_calls:DecodeCalls",
        "evicted_prefixes": "pelton.measure.verify.dimensions.evicted_prefixes:EvictedPrefixes",
    },
)
