"""Counts and comparisons of the native kernels, compiled standalone: `python -m bench.native.counts` and others."""
