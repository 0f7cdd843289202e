"""Plain rotary frequencies (arXiv 2104.09864): no scaling, no options."""

from pelton.layers.rope import RopeOption, RopeParameters, Rotation, base_frequencies, rounded


class Default:
    """theta^(-2j / dim)."""

    options: tuple[RopeOption, ...] = ()

    def longest(self, parameters: RopeParameters) -> int:
        return parameters.context

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return None

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        return Rotation(rounded(base_frequencies(parameters.theta, parameters.dim)))
