"""Position interpolation (arXiv 2306.15595): all frequencies divided by one factor."""

from decimal import localcontext

from pelton.layers.rope import DIGITS, Form, RopeOption, RopeParameters, Rotation, base_frequencies, rounded


class Linear:
    """theta^(-2j / dim) / factor. Configs of this kind keep the unscaled length: the factor stretches it."""

    options: tuple[RopeOption, ...] = (RopeOption("factor", Form.FROM_ONE),)

    def longest(self, parameters: RopeParameters) -> int:
        return int(parameters.context * parameters.number("factor"))

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return None

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        factor = parameters.number("factor")
        base = base_frequencies(parameters.theta, parameters.dim)
        with localcontext(DIGITS):
            return Rotation(rounded([frequency / factor for frequency in base]))
