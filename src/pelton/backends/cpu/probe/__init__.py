"""The probe: what this machine can do at most, measured with the engine's own threads, memory and kernels, and kept."""
