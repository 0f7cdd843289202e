"""Passes over a Module: `fuse` joins ops that belong together, `place` gives every value its place in memory."""

from pelton.program.module import Module
from pelton.program.passes.fuse import fuse


def run_passes(module: Module) -> Module:
    """The module with every entry fused; what backends compile and `pelton program` prints."""
    for entry in module.entries.values():
        module = module.with_entry(fuse(entry))
    return module
