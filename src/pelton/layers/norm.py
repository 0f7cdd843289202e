"""Normalisation of rows, or of each head of a row."""

from dataclasses import dataclass

from pelton.program.builder import Builder


@dataclass(frozen=True, slots=True)
class NormShape:
    """`centred`: the mean is taken away first and a bias may be added (layer norm), else not (RMS norm).

    `plus`: added to the stored gains; 1 for families that store them less one. `biased`: of centred norms only.
    """

    eps: float
    plus: float = 0.0
    centred: bool = False
    biased: bool = False


def norm(builder: Builder, x: str, layer: str, width: int, shape: NormShape, name: str, heads: int = 1) -> str:
    """Adds a norm of x [T, heads x width] with gains `layer`.weight [width], the same for each head; returns `name`.

    RMS (arXiv 1910.07467): x / sqrt(mean(x^2) + eps) * gain. Centred (arXiv 1607.06450): of x - mean(x), plus a bias.
    """
    weights: tuple[str, ...] = (builder.vector(f"{layer}.weight", width, plus=shape.plus),)
    attrs: dict[str, int | float] = {"eps": shape.eps}
    if shape.centred:
        weights += (builder.vector(f"{layer}.bias", width),) if shape.biased else ()
        return builder.op("layer_norm", (x,), (name,), weights=weights, attrs=attrs)[0]
    if heads > 1:
        attrs["heads"] = heads
    return builder.op("rms_norm", (x,), (name,), weights=weights, attrs=attrs)[0]
