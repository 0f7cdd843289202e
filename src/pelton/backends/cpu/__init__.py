"""The CPU backend: a Program compiled to one native call per step, with kernels for each instruction set."""
