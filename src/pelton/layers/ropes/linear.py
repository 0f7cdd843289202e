"""Position interpolation (arXiv 2306.15595): all frequencies divided by one factor."""

from decimal import Decimal, localcontext

from pelton.layers.rope import DIGITS, RopeParameters, Rotation, base_frequencies, rounded


class Linear:
    """theta^(-2j / dim) / factor."""

    options: tuple[str, ...] = ("factor",)

    def rotation(self, parameters: RopeParameters) -> Rotation:
        factor = Decimal(parameters.options["factor"])
        base = base_frequencies(parameters.theta, parameters.dim)
        with localcontext(DIGITS):
            return Rotation(rounded([frequency / factor for frequency in base]))
