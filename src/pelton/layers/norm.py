"""Normalisation."""

from pelton.program.builder import Builder


def rms_norm(builder: Builder, x: str, tensor: str, width: int, eps: float, name: str) -> str:
    """Adds x / sqrt(mean(x^2) + eps) * gain over x [T, width] (arXiv 1910.07467); returns `name`."""
    gain = builder.vector(tensor, width)
    return builder.op("rms_norm", (x,), (name,), weights=(gain,), attrs={"eps": eps})[0]
